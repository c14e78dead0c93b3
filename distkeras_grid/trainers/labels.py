"""Do the labels fit the model? Decided on the driver, before any worker starts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from distkeras_grid.engine.compile_settings import has_own_train_step
from distkeras_grid.errors import ConfigurationError
from distkeras_grid.feeding.shapes import outputs_of
from distkeras_grid.feeding.targets import Takes, check_numbers, shaped

if TYPE_CHECKING:
    import keras

    from distkeras_grid.feeding.shapes import Port
    from distkeras_grid.spark.columns import Columns
    from distkeras_grid.spark.row_partitioner import DataSummary

SPARSE_LOSSES = frozenset({"sparse_categorical_crossentropy", "sparsecategoricalcrossentropy"})
# Their labels have a shape of their own.
FREE_LOSSES = frozenset({"ctc", "ctcloss", "circle", "circleloss"})
BINARY_LOSSES = frozenset(
    {"binary_crossentropy", "binarycrossentropy"}
    | {"binary_focal_crossentropy", "binaryfocalcrossentropy"}
)


def loss_name(loss: Any) -> str:
    """Return the name of a loss in lower case, whatever it was given as."""
    if isinstance(loss, str):
        return loss.lower()
    name = getattr(loss, "__name__", None) or type(loss).__name__
    return str(name).lower()


def losses_of(loss: Any, outputs: Sequence[Port]) -> tuple[Any, ...]:
    """Return the loss of each output, None if there is none or it is not known."""
    count = max(1, len(outputs))
    if isinstance(loss, Mapping):
        return tuple(loss.get(port.name) for port in outputs) or (None,)
    if isinstance(loss, list | tuple):
        return tuple(loss) if len(loss) == count else (None,) * count
    return (loss,) * count


def needs_of(model: Any, loss: Any) -> tuple[Any, ...]:
    """Return the loss of each output, None for an output that needs no label.

    A model with a step or a ``compute_loss`` of its own may do without any.
    """
    outputs = outputs_of(model)
    if _has_own_loss(model):
        return (None,) * max(1, len(outputs))
    return losses_of(loss, outputs)


def _has_own_loss(model: Any) -> bool:
    if not hasattr(model, "train_step"):
        return False
    import keras

    own = type(model).compute_loss is not keras.Model.compute_loss
    return own or has_own_train_step(model)


def fitted(columns: Columns, model: keras.Model) -> Columns:
    """Return the columns with labels in the shapes in which the model's outputs take them."""
    ports = outputs_of(model) or (None,) * len(columns.labels)
    places = [place for place, label in enumerate(columns.labels) if label is not None]
    labels = list(columns.labels)
    for place, label, takes in zip(places, columns.labelled, takes_of(columns, model), strict=True):
        labels[place] = shaped(label, ports[place], takes)
    return replace(columns, labels=tuple(labels))


def check_labels(columns: Columns, summary: DataSummary, model: keras.Model) -> None:
    """Refuse labels that the model's losses cannot take."""
    each = zip(columns.labelled, summary.labels, takes_of(columns, model), strict=True)
    for label, numbers, takes in each:
        check_numbers(label, summary.rows, numbers, takes)


def takes_of(columns: Columns, model: keras.Model) -> list[Takes]:
    """Return what the loss of each label takes."""
    if _has_own_loss(model):
        return [Takes("train_step", nan=True, reshapes=False) for _ in columns.labelled]
    outputs = outputs_of(model)
    losses = losses_of(model.loss, outputs)
    ports = outputs or (None,) * len(columns.labels)
    return [
        taken_by(loss, port)
        for label, loss, port in zip(columns.labels, losses, ports, strict=bool(columns.labels))
        if label is not None
    ]


def taken_by(loss: Any, output: Port | None) -> Takes:
    """Return what a loss takes as labels.

    `loss`: one of the user's own takes what only it knows.
    `output`: the output; None if the model declares none.
    """
    name = loss_name(loss)
    if loss is None or name in FREE_LOSSES or not _is_of_keras(loss):
        return Takes(name, nan=loss is None or not _is_of_keras(loss))
    if name in SPARSE_LOSSES:
        ignored = getattr(loss, "ignore_class", None)
        last = math.inf if output is None or output.size is None else output.size - 1
        return Takes(name, "class", 0, last, whole=True, ignored=ignored)
    if name in BINARY_LOSSES:
        return Takes(name, "output", 0, 1)
    return Takes(name, "output")


def _is_of_keras(loss: Any) -> bool:
    if isinstance(loss, str):
        # Registered with Keras, as "package>name".
        return ">" not in loss
    module = getattr(loss, "__module__", None) or type(loss).__module__
    return str(module).partition(".")[0] == "keras"


def check_classes(
    class_weight: Mapping[int, float] | None,
    columns: Columns,
    summary: DataSummary,
    outputs: Sequence[Port],
) -> None:
    """Refuse class weights of classes that neither the labels nor the model have.

    The model is of one output; see `distkeras_grid.feeding.shapes.check_one_output`.
    """
    if class_weight is None:
        return
    (label,), (numbers,) = columns.labelled, summary.labels
    size = outputs[0].size if outputs else None
    low, high = 0, max(1, (size or 0) - 1)
    if label.size > 1:
        low, high = 0, label.size - 1
    elif math.isfinite(numbers.low):
        low, high = min(low, int(numbers.low)), max(high, int(numbers.high))
    unknown = sorted(number for number in class_weight if not low <= number <= high)
    if unknown:
        raise ConfigurationError(
            f"class_weight names class {unknown[0]}, but classes in column {label.name!r} and "
            f"of the model run from {low} to {high}. Received: {dict(class_weight)!r}."
        )
