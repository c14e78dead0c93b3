"""Rows by position: a `RowSource` returns mini-batches, wherever the rows are stored.

The training loop asks a source for rows and does not know where they come from. Two things are kept
apart: a source knows its rows and no order, and a `distkeras_grid.feeding.batches.BatchSampler`
knows the order and no rows. So an epoch depends only on the policy.

There are places for extensions:

- Rows that must be made first, as tiles that are cut from their images on the worker: an encoding
  of their column (`distkeras_grid.feeding.encodings`). `data_prep.cut` is one. It works wherever a
  column is read, so a worker's row cache needs nothing else.
- Rows at another place, as a table of indices over files that a worker reads by itself: a class
  with the methods of `RowSource`. `blocks` is given the places of a whole window at once, so that
  such a source can reach for a window's rows file by file.
- Another order: a class with the methods of `BatchSampler`. It may know what it wants of the rows,
  such as their labels; cores and loop see windows only. `LocalSetSampler` is one.

`tests.contracts.test_sources` tests every source.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from distkeras_grid.errors import DataError
from distkeras_grid.feeding.schema import Field
from distkeras_grid.rows import RowBlock, aligned_empty, check_places, take

#: Which rows make the mini-batches of a block, shape ``(steps, batch)``.
Places: TypeAlias = NDArray[np.int64]


class RowSource(Protocol):
    """The rows of one seat.

    A place always means the same row, in every attempt of a task. Nothing else is promised about
    the order of the rows.
    """

    def __len__(self) -> int:
        """Rows; 0 for an empty seat."""
        ...

    def blocks(self, window: Sequence[Places]) -> Iterator[RowBlock]:
        """Yield the rows of a window, one block for each array of places, in their order.

        At most one block at a time is made. A source whose rows are expensive to reach may look at
        the places of the whole window first, and reach for them in an order of its own.

        Each block is new memory, so its receiver may change it. All its arrays are C-contiguous and
        begin at a multiple of 64 bytes, as an engine needs them to share their memory. There is no
        other copy of the rows between the place where they are stored and the block.

        `window`: as in `distkeras_grid.feeding.batches.Window`: each of shape ``(steps, batch)``,
        int64, with places from 0 to ``len(self) - 1``. A row may occur more than once.
        """
        ...


class ArraySource:
    """Rows that are held in memory.

    `features`: one array for each input of the model, shape ``(rows, *shape)``, in the type in
    which they are stored.
    `labels`: one array for each output that has a label, shape ``(rows, *shape)``.
    `weights`: sample weights, shape ``(rows,)``.
    `fields`: the features; by default described by their arrays, without scaling.
    `label_fields`: the label of each output, None for one without; by default described by their
    arrays.

    Examples
    --------
    >>> source = ArraySource([np.array([[1.0], [2.0], [3.0]])], [np.array([0, 1, 0])])
    >>> (block,) = source.blocks([np.array([[2, 0]])])
    >>> block.x[0].tolist(), block.y[0].tolist()
    ([[[3.0], [1.0]]], [[0, 0]])
    """

    def __init__(
        self,
        features: Sequence[NDArray[Any]],
        labels: Sequence[NDArray[Any]],
        weights: NDArray[Any] | None = None,
        *,
        fields: Sequence[Field] | None = None,
        label_fields: Sequence[Field | None] | None = None,
    ) -> None:
        # NumPy would copy any other array as a whole for each block.
        self.features, self.labels = (
            tuple(_ready(array) for array in arrays) for arrays in (features, labels)
        )
        self.weights = None if weights is None else _ready(np.asarray(weights, np.float32))
        columns = [*self.features, *self.labels, *([] if self.weights is None else [self.weights])]
        lengths = [len(array) if array.ndim else None for array in columns]
        if not self.features or len(set(lengths)) != 1 or lengths[0] is None:
            raise DataError(
                "Features, labels and sample weights must have the same number of rows. "
                f"Received lengths: {lengths}."
            )
        self._rows: int = lengths[0]
        self.fields = tuple(fields or _described("features", self.features))
        self.label_fields = (
            _described("label", self.labels) if label_fields is None else tuple(label_fields)
        )

    def __len__(self) -> int:
        """Rows."""
        return self._rows

    def blocks(self, window: Sequence[Places]) -> Iterator[RowBlock]:
        """Yield the rows of a window; see `RowSource`."""
        for places in window:
            yield RowBlock(
                x=tuple(take(array, places) for array in self.features),
                y=tuple(take(array, places) for array in self.labels),
                weight=None if self.weights is None else take(self.weights, places),
            )

    def part(self, places: Places) -> ArraySource:
        """Return copies of some rows, in the order of their places."""
        check_places(places, len(self))
        return ArraySource(
            [array[places] for array in self.features],
            [array[places] for array in self.labels],
            None if self.weights is None else self.weights[places],
            fields=self.fields,
            label_fields=self.label_fields,
        )


@dataclass(frozen=True)
class ClassWeightedSource:
    """The rows of another source, weighted by the class of their only label.

    Class weights become sample weights here, on the host, as in Keras' own ``fit``.

    Examples
    --------
    >>> rows = ArraySource([np.zeros((2, 1))], [np.array([0, 1])], np.array([2.0, 3.0]))
    >>> (block,) = ClassWeightedSource(rows, {1: 0.5}).blocks([np.array([[0, 1]])])
    >>> block.weight.tolist()
    [[2.0, 1.5]]
    """

    source: RowSource  # The rows
    # Weight of the samples of each class, 1 for classes that are not named
    class_weight: Mapping[int, float]

    def __len__(self) -> int:
        """Rows of the source."""
        return len(self.source)

    def blocks(self, window: Sequence[Places]) -> Iterator[RowBlock]:
        """Yield the rows of a window; see `RowSource`."""
        # The source may fetch the rows now, and not with the first block.
        return self._weighted(self.source.blocks(window))

    def _weighted(self, blocks: Iterator[RowBlock]) -> Iterator[RowBlock]:
        for block in blocks:
            (label,) = block.y
            yield RowBlock(block.x, block.y, self._weights(label, block.weight))

    def _weights(
        self, label: NDArray[Any], weight: NDArray[np.float32] | None
    ) -> NDArray[np.float32]:
        """Return the weights of a block."""
        classes, which = np.unique(classes_of(label), return_inverse=True)
        factors = np.array([self.class_weight.get(int(c), 1.0) for c in classes], np.float32)
        out: NDArray[np.float32] = aligned_empty(label.shape[:2], np.float32)
        np.multiply(
            factors[which].reshape(label.shape[:2]), 1.0 if weight is None else weight, out=out
        )
        return out


def weighted_by(source: RowSource, class_weight: Mapping[int, float] | None) -> RowSource:
    """Return a source whose rows have the weights of their classes, or the source for None."""
    return source if class_weight is None else ClassWeightedSource(source, class_weight)


def classes_of(label: NDArray[Any]) -> NDArray[np.int64]:
    """Return the class that each label of a block names.

    With several numbers, the place of the largest is the class; a single one is the class itself.

    `label`: shape ``(steps, batch)``, ``(steps, batch, 1)`` or, one-hot, ``(steps, batch, k)``.

    Examples
    --------
    >>> classes_of(np.array([[0.0, 2.0]])).tolist(), classes_of(np.eye(3)[[[1, 2]]]).tolist()
    ([0, 2], [1, 2])
    """
    single = label.ndim == 2 or label.shape[-1] == 1
    classes: NDArray[np.int64] = (np.rint(label) if single else label.argmax(axis=-1)).ravel()
    return classes.astype(np.int64)


def _described(what: str, arrays: Sequence[NDArray[Any]]) -> tuple[Field, ...]:
    return tuple(
        Field(f"{what}_{number}", array.shape[1:], array.dtype.name)
        for number, array in enumerate(arrays)
    )


def _ready(array: NDArray[Any]) -> NDArray[Any]:
    """Return an array from which `take` copies rows and nothing else."""
    return np.require(array, array.dtype.newbyteorder("="), ["C", "A"])
