"""A model's float variables as one flat vector.

The flat ``float32`` vector is what workers, wire, rules and snapshots exchange; it is cut into
arrays only at the Keras border. First come the trainable variables in the model's order, then the
statistics: the float variables that training changes without a gradient (the means and variances
of batch normalization). Frozen weights, integers and random-generator state are not in it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from distkeras_grid.errors import ConfigurationError

Vector: TypeAlias = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Variable:
    """Name and shape of one variable.

    Parameters
    ----------
    path : str
        Where it stands in the model, such as ``"dense/kernel"``.
    shape : tuple of int
        Its shape; ``()`` for a scalar.
    """

    path: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of scalars."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class WeightLayout:
    """The order and the shapes of a model's variables in the flat vector.

    Parameters
    ----------
    trainable, statistics : tuple of Variable
        What the update rules act on, and what is averaged beside it: statistics, and behind them
        the optimizer's state where that travels.

    Examples
    --------
    >>> layout = WeightLayout((Variable("dense/kernel", (2, 3)),), (Variable("bn/mean", (3,)),))
    >>> vector = layout.flatten([np.ones((2, 3)), np.zeros(3)])
    >>> vector.tolist()
    [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0]
    >>> [array.shape for array in layout.unflatten(vector)]
    [(2, 3), (3,)]
    """

    trainable: tuple[Variable, ...]
    statistics: tuple[Variable, ...] = ()

    @property
    def variables(self) -> tuple[Variable, ...]:
        """All variables in the order of the vector."""
        return self.trainable + self.statistics

    @property
    def trainable_size(self) -> int:
        """Number of scalars that the update rules act on."""
        return sum(variable.size for variable in self.trainable)

    @property
    def statistics_size(self) -> int:
        """Number of scalars in the statistics."""
        return sum(variable.size for variable in self.statistics)

    @property
    def size(self) -> int:
        """Number of scalars in the vector."""
        return self.trainable_size + self.statistics_size

    def flatten(self, arrays: Sequence[NDArray[Any]]) -> Vector:
        """Copy arrays into a new flat vector.

        Parameters
        ----------
        arrays : sequence of ndarray
            One array for each variable, trainable first.

        Returns
        -------
        ndarray
            Shape ``(size,)``, ``float32``.

        Raises
        ------
        ConfigurationError
            If the number of arrays or a shape is another.
        """
        if len(arrays) != len(self.variables):
            raise ConfigurationError(
                f"The layout has {len(self.variables)} variables, {len(arrays)} arrays came in."
            )
        vector = np.empty(self.size, dtype=np.float32)
        for variable, part, array in zip(
            self.variables, self.unflatten(vector), arrays, strict=True
        ):
            if np.shape(array) != variable.shape:
                raise ConfigurationError(
                    f"{variable.path} has shape {variable.shape}, {np.shape(array)} came in."
                )
            part[...] = array
        return vector

    def unflatten(self, vector: Vector) -> list[Vector]:
        """Cut a flat vector into views, one for each variable.

        Parameters
        ----------
        vector : ndarray
            Shape ``(size,)``, ``float32``.

        Returns
        -------
        list of ndarray
            Views into `vector` in the order of `variables`.

        Raises
        ------
        ConfigurationError
            If the vector has another shape.
        """
        if vector.shape != (self.size,):
            raise ConfigurationError(
                f"The layout needs a vector of shape ({self.size},), {vector.shape} came in."
            )
        views = []
        start = 0
        for variable in self.variables:
            views.append(vector[start : start + variable.size].reshape(variable.shape))
            start += variable.size
        return views

    def to_json(self) -> dict[str, Any]:
        """Return the layout as plain JSON values."""
        return {
            part: [{"path": variable.path, "shape": list(variable.shape)} for variable in variables]
            for part, variables in (("trainable", self.trainable), ("statistics", self.statistics))
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> WeightLayout:
        """Build the layout that `to_json` described.

        Parameters
        ----------
        data : mapping
            What `to_json` returned.

        Raises
        ------
        ConfigurationError
            If the mapping is no layout.
        """
        try:
            trainable, statistics = (
                tuple(
                    Variable(str(entry["path"]), tuple(int(length) for length in entry["shape"]))
                    for entry in data[part]
                )
                for part in ("trainable", "statistics")
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigurationError(f"No weight layout: {data!r} came in.") from error
        return cls(trainable, statistics)


def empty_vector(size: int) -> Vector:
    """Return a new flat vector of `size` scalars, ``float32``, with nothing written to it."""
    return np.empty(size, dtype=np.float32)
