"""Do the labels fit the model? Decided on the driver, before any worker starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from distkeras_grid.errors import ConfigurationError, LabelError

if TYPE_CHECKING:
    from distkeras_grid.feeding.shapes import Port
    from distkeras_grid.spark.columns import Columns, Label
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


def losses_of(loss: Any, outputs: Sequence[Port]) -> tuple[Any, ...]:
    """Return the loss of each output, None if there is none or it is not known.

    Parameters
    ----------
    loss : str, callable, keras.losses.Loss, list or dict
        As in ``keras.Model.compile``.
    outputs : sequence of Port
        The model's.

    Examples
    --------
    >>> from distkeras_grid.feeding.shapes import Port
    >>> outputs = (Port("kind", (3,)), Port("size", (1,)))
    >>> losses_of({"size": "mse", "kind": "crossentropy"}, outputs)
    ('crossentropy', 'mse')
    >>> losses_of("mse", outputs)
    ('mse', 'mse')
    """
    count = max(1, len(outputs))
    if isinstance(loss, Mapping):
        return tuple(loss.get(port.name) for port in outputs) or (None,)
    if isinstance(loss, list | tuple):
        return tuple(loss) if len(loss) == count else (None,) * count
    return (loss,) * count


def check_labels(
    columns: Columns, summary: DataSummary, loss: Any, outputs: Sequence[Port]
) -> None:
    """Refuse labels that the model's losses cannot take.

    Parameters
    ----------
    columns : Columns
        Kind and length of the labels.
    summary : DataSummary
        Their smallest and largest numbers.
    loss : str, callable, keras.losses.Loss, list or dict
        The model's loss or losses; unknown ones are not checked.
    outputs : sequence of Port
        The model's; empty if unknown, which checks less.

    Raises
    ------
    LabelError
        Names the column, the range that was received and the one that the model takes.
    """
    sizes = [port.size for port in outputs] or [None]
    losses = losses_of(loss, outputs)
    each = zip(columns.labels, summary.label_ranges, losses, sizes, strict=True)
    for label, span, its_loss, size in each:
        check_label(label, span, its_loss, size)


def check_label(label: Label, span: tuple[float, float], loss: Any, outputs: int | None) -> None:
    """Refuse the labels of one column that the loss of its output cannot take.

    Parameters
    ----------
    label : Label
        Kind and length of the labels.
    span : (float, float)
        Their smallest and largest number.
    loss : str, callable or keras.losses.Loss
        Unknown ones are not checked.
    outputs : int or None
        Length of the output; None if unknown, which checks less.

    Raises
    ------
    LabelError
        Names the column, the range that was received and the one that the model takes.
    """
    name = loss_name(loss)
    low, high = span
    if name in SPARSE_LOSSES:
        if label.size is not None and label.size != 1:
            raise LabelError(
                f"{name} takes integer labels. Received: column {label.name!r} with arrays of "
                f"{label.size} numbers. Use categorical_crossentropy for one-hot labels."
            )
        if outputs is not None and not (low >= 0 and high < outputs):
            raise LabelError(
                f"Labels in column {label.name!r} run from {low:g} to {high:g}, but the "
                f"model's output has {outputs} classes and takes 0 to {outputs - 1}."
            )
    elif name in CATEGORICAL_LOSSES:
        _check_array(label, name, outputs)
    elif name in BINARY_LOSSES and not (low >= 0 and high <= 1):
        raise LabelError(
            f"{name} takes labels from 0 to 1, but those in column {label.name!r} run "
            f"from {low:g} to {high:g}."
        )


def _check_array(label: Label, name: str, outputs: int | None) -> None:
    if label.size is None:
        raise LabelError(
            f"{name} takes one-hot labels. Received: column {label.name!r} with single numbers. "
            "Use sparse_categorical_crossentropy for integer labels."
        )
    if outputs is not None and label.size != outputs:
        raise LabelError(
            f"Labels in column {label.name!r} are arrays of {label.size} numbers, but "
            f"the model's output has {outputs}."
        )


def check_classes(
    class_weight: Mapping[int, float] | None,
    columns: Columns,
    summary: DataSummary,
    outputs: Sequence[Port],
) -> None:
    """Refuse class weights of classes that neither the labels nor the model have.

    The model is of one output; see `distkeras_grid.feeding.shapes.check_one_output`.

    Parameters
    ----------
    class_weight : mapping of int to float, optional
        Weight of each class.
    columns : Columns
        Length of the labels.
    summary : DataSummary
        Their smallest and largest number.
    outputs : sequence of Port
        The model's, empty if unknown.

    Raises
    ------
    ConfigurationError
        Names the class and the range.
    """
    if class_weight is None:
        return
    (label,), (span,) = columns.labels, summary.label_ranges
    size = outputs[0].size if outputs else None
    low, high = min(0, int(span[0])), max(1, int(span[1]), (size or 0) - 1)
    if label.size is not None and label.size > 1:
        low, high = 0, label.size - 1
    unknown = sorted(number for number in class_weight if not low <= number <= high)
    if unknown:
        raise ConfigurationError(
            f"class_weight names class {unknown[0]}, but classes in column {label.name!r} and "
            f"of the model run from {low} to {high}. Received: {dict(class_weight)!r}."
        )
