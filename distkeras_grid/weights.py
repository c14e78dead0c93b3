"""A model's variables as sections of one flat vector.

The flat ``float32`` vector is what workers, wire, rules and snapshots exchange; it is cut into
arrays only at the Keras border. Its sections follow each other without a gap:

=============== ================================================================ =========
section         variables                                                        policy
=============== ================================================================ =========
``trainable``   the trainable variables in the model's order                     ``rule``
``statistics``  float variables that training changes without a gradient, such   ``average``
                as the means and variances of batch normalization
=============== ================================================================ =========

Frozen weights are in none of them. What one worker hands to another (an optimizer's whole state,
with its integers) is not part of the vector: it is a section of its own, in the variables' own
types, see `StateSection`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from distkeras_grid.errors import ConfigurationError

Vector: TypeAlias = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Variable:
    """Name, shape and type of one variable."""

    path: str  # Its place in the model, such as ``"dense/kernel"``
    shape: tuple[int, ...]  # Its shape; ``()`` for a scalar
    dtype: str = "float32"  # Its NumPy type

    @property
    def size(self) -> int:
        """Number of scalars."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Number of bytes."""
        return self.size * np.dtype(self.dtype).itemsize


@dataclass(frozen=True, slots=True)
class Section:
    """A named slice of a vector."""

    name: Literal["trainable", "statistics"]  # Which section
    start: int  # start and stop: The slice, in scalars
    stop: int

    @property
    def policy(self) -> Literal["rule", "average"]:
        """How the server folds it: by the run's update rule, or by averaging."""
        return "rule" if self.name == "trainable" else "average"

    @property
    def span(self) -> slice:
        """The slice of the vector."""
        return slice(self.start, self.stop)

    @property
    def size(self) -> int:
        """Number of scalars."""
        return self.stop - self.start


def sections_of_sizes(trainable: int, statistics: int = 0) -> tuple[Section, ...]:
    """Return the sections of a vector, in their order; some may be empty."""
    end = trainable + statistics
    return Section("trainable", 0, trainable), Section("statistics", trainable, end)


def shard_sections(sections: Sequence[Section], start: int, stop: int) -> tuple[Section, ...]:
    """Return the sections of a shard, a slice of the whole vector."""
    sizes = (max(0, min(each.stop, stop) - max(each.start, start)) for each in sections)
    return sections_of_sizes(*sizes)


def vector_size(sections: Sequence[Section]) -> int:
    """Return the number of scalars in the vector that has these sections."""
    return sections[-1].stop if sections else 0


@dataclass(frozen=True)
class WeightLayout:
    """The sections of a model's flat vector, and the variables in each."""

    # trainable and statistics: The variables of each section, all ``float32``
    trainable: tuple[Variable, ...]
    statistics: tuple[Variable, ...] = ()

    def __post_init__(self) -> None:
        for variable in self.variables:
            if variable.dtype != "float32":
                raise ConfigurationError(
                    f"A flat vector holds float32 variables only. Received: {variable.path!r} of "
                    f"type {variable.dtype}."
                )

    @property
    def variables(self) -> tuple[Variable, ...]:
        """All variables in the order of the vector."""
        return self.trainable + self.statistics

    @property
    def sections(self) -> tuple[Section, ...]:
        """All sections in the order of the vector; some may be empty."""
        return sections_of_sizes(self.trainable_size, self.statistics_size)

    @property
    def trainable_size(self) -> int:
        """Number of scalars that the update rule acts on."""
        return _size(self.trainable)

    @property
    def statistics_size(self) -> int:
        """Number of scalars in the statistics."""
        return _size(self.statistics)

    @property
    def size(self) -> int:
        """Number of scalars in the vector."""
        return _size(self.variables)

    def flatten(self, arrays: Sequence[NDArray[Any]]) -> Vector:
        """Copy arrays into a new flat vector."""
        if len(arrays) != len(self.variables):
            raise ConfigurationError(
                f"The layout has {len(self.variables)} variables. Received: {len(arrays)} arrays."
            )
        vector = np.empty(self.size, dtype=np.float32)
        for variable, part, array in zip(
            self.variables, self.unflatten(vector), arrays, strict=True
        ):
            if np.shape(array) != variable.shape:
                raise ConfigurationError(
                    f"{variable.path} has shape {variable.shape}. Received: {np.shape(array)}."
                )
            part[...] = array
        return vector

    def unflatten(self, vector: Vector) -> list[Vector]:
        """Cut a flat vector into views, one for each variable.

        `vector`: shape ``(size,)``, ``float32``.
        """
        if vector.shape != (self.size,):
            raise ConfigurationError(
                f"The layout needs a vector of shape ({self.size},). Received: {vector.shape}."
            )
        views = []
        start = 0
        for variable in self.variables:
            views.append(vector[start : start + variable.size].reshape(variable.shape))
            start += variable.size
        return views


@dataclass(frozen=True)
class StateSection:
    """Variables of any types that one worker hands to another, one behind the other as bytes."""

    # In their order; whole numbers, floats of NumPy's own types, or booleans
    variables: tuple[Variable, ...] = ()

    def __post_init__(self) -> None:
        for variable in self.variables:
            if _kind(variable.dtype) not in "biuf":
                raise ConfigurationError(
                    "A state holds numbers of NumPy's own types. Received: "
                    f"{variable.path!r} of type {variable.dtype!r}."
                )

    @property
    def nbytes(self) -> int:
        """Number of bytes."""
        return sum(variable.nbytes for variable in self.variables)

    def is_like(self, other: StateSection) -> bool:
        """Whether another section has the same shapes and types in the same order.

        Names may differ, because Keras numbers layers from the beginning in each process.
        """
        return [(v.shape, v.dtype) for v in self.variables] == [
            (v.shape, v.dtype) for v in other.variables
        ]

    def is_finite(self, data: NDArray[np.uint8]) -> bool:
        """Whether no float in a buffer is NaN or infinite.

        `data`: what `pack` returned, shape ``(nbytes,)``, ``uint8``.
        """
        floats = (array for array in self.unpack(data) if array.dtype.kind == "f")
        return all(bool(np.isfinite(array).all()) for array in floats)

    def pack(self, arrays: Sequence[Any]) -> NDArray[np.uint8]:
        """Copy arrays into one new buffer.

        `arrays`: one for each variable, in its shape and type.
        """
        if len(arrays) != len(self.variables):
            raise ConfigurationError(
                f"The state has {len(self.variables)} variables. Received: {len(arrays)} arrays."
            )
        data = np.empty(self.nbytes, np.uint8)
        for variable, span, value in zip(self.variables, self._spans(), arrays, strict=True):
            array = np.asarray(value)
            if array.shape != variable.shape or array.dtype != variable.dtype:
                raise ConfigurationError(
                    f"{variable.path} has shape {variable.shape} and type {variable.dtype}. "
                    f"Received: {array.shape} and {array.dtype}."
                )
            data[span] = np.frombuffer(array.tobytes(), np.uint8)
        return data

    def unpack(self, data: NDArray[np.uint8]) -> list[NDArray[Any]]:
        """Cut a buffer into views, one for each variable.

        `data`: what `pack` returned, shape ``(nbytes,)``, ``uint8``.
        """
        if data.shape != (self.nbytes,):
            raise ConfigurationError(
                f"The state has {self.nbytes} bytes. Received: {data.size} bytes."
            )
        pairs = zip(self.variables, self._spans(), strict=True)
        return [data[span].view(v.dtype).reshape(v.shape) for v, span in pairs]

    def _spans(self) -> Iterator[slice]:
        start = 0
        for variable in self.variables:
            yield slice(start, start + variable.nbytes)
            start += variable.nbytes


def empty_vector(size: int) -> Vector:
    """Return a new flat vector of `size` scalars, ``float32``, with nothing written to it."""
    return np.empty(size, dtype=np.float32)


def _kind(dtype: str) -> str:
    """Return the kind of a NumPy type by its letter; "?" where there is no such type."""
    try:
        return np.dtype(dtype).kind
    except TypeError:
        return "?"


def _size(variables: Iterable[Variable]) -> int:
    return sum(variable.size for variable in variables)
