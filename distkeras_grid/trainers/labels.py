"""Do the labels fit the model? Decided on the driver, before any worker starts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from distkeras_grid.errors import ConfigurationError, LabelError

if TYPE_CHECKING:
    from distkeras_grid.spark.dataframes import Columns
    from distkeras_grid.spark.seats import DataSummary

SPARSE_LOSSES = frozenset({"sparse_categorical_crossentropy", "sparsecategoricalcrossentropy"})
CATEGORICAL_LOSSES = frozenset(
    {"categorical_crossentropy", "categoricalcrossentropy"}
    | {"categorical_focal_crossentropy", "categoricalfocalcrossentropy"}
)
BINARY_LOSSES = frozenset(
    {"binary_crossentropy", "binarycrossentropy"}
    | {"binary_focal_crossentropy", "binaryfocalcrossentropy"}
)


def loss_name(loss: Any) -> str:
    """Return the name of a loss in lower case, whatever it was given as.

    Examples
    --------
    >>> loss_name("Sparse_Categorical_Crossentropy")
    'sparse_categorical_crossentropy'
    """
    if isinstance(loss, str):
        return loss.lower()
    name = getattr(loss, "__name__", None) or type(loss).__name__
    return str(name).lower()


def check_labels(columns: Columns, summary: DataSummary, loss: Any, outputs: int | None) -> None:
    """Refuse labels that the model's loss cannot take.

    Parameters
    ----------
    columns : Columns
        Kind and length of the labels.
    summary : DataSummary
        Their smallest and largest number.
    loss : str, callable or keras.losses.Loss
        The model's loss; unknown ones are not checked.
    outputs : int or None
        Length of the model's output; None if unknown, which checks less.

    Raises
    ------
    LabelError
        Names the column, the range that came in and the one the model takes.
    """
    name = loss_name(loss)
    low, high = summary.label_low, summary.label_high
    if name in SPARSE_LOSSES:
        if columns.label_size is not None and columns.label_size != 1:
            raise LabelError(
                f"{name} takes integer labels, but {columns.label!r} holds arrays of "
                f"{columns.label_size} numbers; use categorical_crossentropy for one-hot labels."
            )
        if outputs is not None and not (low >= 0 and high < outputs):
            raise LabelError(
                f"Labels in column {columns.label!r} run from {low:g} to {high:g}, but the "
                f"model's output has {outputs} classes and takes 0 to {outputs - 1}."
            )
    elif name in CATEGORICAL_LOSSES:
        _check_array(columns, name, outputs)
    elif name in BINARY_LOSSES and not (low >= 0 and high <= 1):
        raise LabelError(
            f"{name} takes labels from 0 to 1, but those in column {columns.label!r} run "
            f"from {low:g} to {high:g}."
        )


def _check_array(columns: Columns, name: str, outputs: int | None) -> None:
    if columns.label_size is None:
        raise LabelError(
            f"{name} takes one-hot labels, but column {columns.label!r} holds single numbers; "
            "use sparse_categorical_crossentropy for integer labels."
        )
    if outputs is not None and columns.label_size != outputs:
        raise LabelError(
            f"Labels in column {columns.label!r} are arrays of {columns.label_size} numbers, but "
            f"the model's output has {outputs}."
        )


def check_classes(
    class_weight: Mapping[int, float] | None,
    columns: Columns,
    summary: DataSummary,
    outputs: int | None,
) -> None:
    """Refuse class weights of classes that neither the labels nor the model have.

    Parameters
    ----------
    class_weight : mapping of int to float, optional
        Weight of each class.
    columns : Columns
        Length of the labels.
    summary : DataSummary
        Their smallest and largest number.
    outputs : int or None
        Length of the model's output, None if unknown.

    Raises
    ------
    ConfigurationError
        Names the class and the range.
    """
    low, high = min(0, int(summary.label_low)), max(1, int(summary.label_high), (outputs or 0) - 1)
    if columns.label_size is not None and columns.label_size > 1:
        low, high = 0, columns.label_size - 1
    unknown = sorted(number for number in class_weight or {} if not low <= number <= high)
    if unknown:
        raise ConfigurationError(
            f"class_weight names class {unknown[0]}, but classes in column {columns.label!r} and "
            f"of the model run from {low} to {high}. Received: {dict(class_weight or {})!r}."
        )
