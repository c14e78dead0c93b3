"""What an output of a model takes as labels, and what a column of labels has.

A label is described by a `Field`, as a feature is. Its shape is compared with that of the output
before anything runs: Keras would broadcast labels of another shape over the batch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from distkeras_grid.errors import LabelError
from distkeras_grid.feeding.encodings import ENCODED
from distkeras_grid.feeding.schema import Field
from distkeras_grid.feeding.shapes import Port, fits

Shape = Literal["output", "class", "any"]


@dataclass(frozen=True)
class Takes:
    """What the loss of an output takes as labels."""

    name: str = "the loss"  # Name of the loss, for errors
    # Whether labels have the shape of the output, the one without its last axis (the number of a
    # class), or one that only the loss knows
    shape: Shape = "any"
    low: float = -math.inf  # low and high: Bounds of the numbers, both included
    high: float = math.inf
    whole: bool = False  # Whether they are whole numbers
    ignored: float | None = None  # A number that means that there is no label
    nan: bool = False  # Whether NaN may mean that there is none
    reshapes: bool = True  # Whether labels with as many numbers as the output are given its shape

    @property
    def bounded(self) -> bool:
        """Whether the numbers must be looked at."""
        return self.whole or math.isfinite(self.low) or math.isfinite(self.high)


@dataclass(frozen=True)
class LabelSummary:
    """The numbers of a label column."""

    # low and high: The smallest and the largest, without NaN and those that are ignored; NaN where
    # there is none, or nobody has looked
    low: float = math.nan
    high: float = math.nan
    missing: int = 0  # Rows with NaN
    fractions: int = 0  # Rows with numbers that are not whole

    @classmethod
    def of(cls, values: NDArray[Any], takes: Takes) -> Self:
        """Look at labels, shape ``(rows, ...)``.

        Examples
        --------
        >>> LabelSummary.of(np.array([0.5, 2.0, np.nan, -1.0]), Takes(ignored=-1))
        LabelSummary(low=0.5, high=2.0, missing=1, fractions=1)
        """
        flat = values.reshape(len(values), -1)
        nan = np.isnan(flat) if flat.dtype.kind == "f" else np.zeros(flat.shape, bool)
        counted = ~nan if takes.ignored is None else ~nan & (flat != takes.ignored)
        known = flat[counted]
        broken = counted & (flat != np.floor(flat)) if flat.dtype.kind == "f" else ~counted & False
        low, high = (float(known.min()), float(known.max())) if known.size else (math.nan,) * 2
        return cls(low, high, int(nan.any(axis=1).sum()), int(broken.any(axis=1).sum()))

    @classmethod
    def merged(cls, parts: Iterable[Self]) -> Self:
        """Return the summary of several parts of a column."""
        summaries = list(parts)
        if not summaries:
            return cls()
        return cls(
            float(np.fmin.reduce([part.low for part in summaries])),
            float(np.fmax.reduce([part.high for part in summaries])),
            sum(part.missing for part in summaries),
            sum(part.fractions for part in summaries),
        )


def shaped(label: Field, output: Port | None, takes: Takes) -> Field:
    """Return a label with the shape in which the output takes it.

    `output`: the output; None if the model declares none, then nothing is known.

    Examples
    --------
    >>> output = Port("forecast", (1, 6))
    >>> shaped(Field("next", (6,), "float32"), output, Takes("mse", "output")).shape
    (1, 6)
    """
    if output is None or not output.shape or not takes.reshapes:
        return label
    wanted = output.shape[:-1] if takes.shape == "class" else output.shape
    if _agrees(wanted, label.shape, takes):
        return label
    known = [size for size in wanted if size is not None]
    fixed = len(known) == len(wanted) and label.encoding not in ENCODED
    if fixed and math.prod(known) == label.size:
        return replace(label, shape=tuple(known))
    if takes.shape == "any":
        return label
    raise LabelError(
        f"{takes.name} takes labels of shape {wanted} for the output {output.name!r} of shape "
        f"{output.shape}. Received: column {label.name!r} with {_describe(label.shape)}."
        f"{_advice(label, output, takes)}"
    )


def check_numbers(label: Field, rows: int, summary: LabelSummary, takes: Takes) -> None:
    """Refuse numbers that a loss does not take."""
    column = f"column {label.name!r}"
    if summary.missing and not takes.nan:
        raise LabelError(
            f"{takes.name} takes a number in every row. Received: NaN in {summary.missing} of "
            f"{rows} rows of {column}. Drop these rows, or mark missing labels by a number such as "
            "-1 and leave them out in a loss of your own (or by ignore_class)."
        )
    if takes.whole and summary.fractions:
        raise LabelError(
            f"{takes.name} takes integer labels. Received: other numbers in {summary.fractions} of "
            f"{rows} rows of {column}, from {summary.low:g} to {summary.high:g}."
        )
    if summary.low < takes.low or summary.high > takes.high:
        ignored = "" if takes.ignored is None else f" (and {takes.ignored:g}, which it ignores)"
        raise LabelError(
            f"Labels in {column} run from {summary.low:g} to {summary.high:g}, but {takes.name} "
            f"takes {takes.low:g} to {takes.high:g} here{ignored}."
        )


def _agrees(wanted: Sequence[int | None], shape: Sequence[int], takes: Takes) -> bool:
    """Whether Keras takes a label of this shape; an axis of one at the end may be missing."""
    shorter = wanted[:-1] if takes.shape != "class" and wanted and wanted[-1] == 1 else wanted
    return fits(wanted, shape) or fits(shorter, shape) or fits((*wanted, 1), shape)


def _describe(shape: Sequence[int]) -> str:
    if not shape:
        return "single numbers"
    return f"values of shape {tuple(shape)}"


def _advice(label: Field, output: Port, takes: Takes) -> str:
    if takes.shape == "class" and fits(output.shape, label.shape):
        return " Use categorical_crossentropy for one-hot labels."
    if "categorical" in takes.name and fits(output.shape[:-1], label.shape):
        return " Use sparse_categorical_crossentropy for integer labels."
    return (
        f' Build the model for the labels, or describe them: label_col=Field("{label.name}", '
        "shape=...)."
    )
