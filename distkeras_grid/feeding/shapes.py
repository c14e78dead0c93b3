"""What a model takes and gives, and which columns go where."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from distkeras_grid.errors import ConfigurationError, SchemaError
from distkeras_grid.feeding.schema import Field


@dataclass(frozen=True)
class Port:
    """One input or one output of a model."""

    # Keras' name: for an input its own name, for an output the name of its layer. If the model was
    # built with a dict, the key.
    name: str
    shape: tuple[int | None, ...]  # Shape of one row
    dtype: str = "float32"  # Type in the model

    @property
    def size(self) -> int | None:
        """Length of the last axis, None if it is not known."""
        return self.shape[-1] if self.shape else None


def inputs_of(model: Any) -> tuple[Port, ...]:
    """Return a model's inputs in its order; none if its class declares none to Keras."""
    tensors, keys = _declared(model, "input")
    names = [keys.get(id(tensor), tensor.name) for tensor in tensors]
    return _ports(names, tensors)


def outputs_of(model: Any) -> tuple[Port, ...]:
    """Return a model's outputs in its order; none if its class declares none to Keras."""
    tensors, keys = _declared(model, "output")
    layers = getattr(model, "output_names", None) or [tensor.name for tensor in tensors]
    names = [keys.get(id(t), layer) for t, layer in zip(tensors, layers, strict=True)]
    return _ports(names, tensors)


def match(columns: Any, ports: Sequence[Port], what: str) -> tuple[Any, ...]:
    """Return one item for each input or output of a model, in the model's order.

    `ports`: inputs or outputs of the model. Empty if the model declares none; it then has one.

    Examples
    --------
    >>> ports = (Port("image", (8, 8)), Port("age", (1,)))
    >>> match({"age": "years", "image": "pixels"}, ports, "features_col")
    ('pixels', 'years')
    """
    names = [port.name for port in ports]
    known = f"the model has {', '.join(map(repr, names)) or 'one, which has no name'}"
    if isinstance(columns, Mapping):
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ConfigurationError(
                f"{what} cannot be given by names: {known}, and {twice!r} occurs twice. "
                f"Give a list in this order. Received: {columns!r}."
            )
        missing = [name for name in names if name not in columns]
        unknown = [name for name in columns if name not in names]
        if missing or unknown:
            fault = f"nothing for {missing[0]!r}" if missing else f"no place for {unknown[0]!r}"
            raise ConfigurationError(f"{what} has {fault}; {known}. Received: {columns!r}.")
        return tuple(columns[name] for name in names)
    items = tuple(columns) if isinstance(columns, list | tuple) else (columns,)
    count = max(1, len(names))
    if len(items) != count:
        missing = names[len(items) :]
        fault = f"nothing for {missing[0]!r}" if missing else f"{len(items)} items for {count}"
        raise ConfigurationError(
            f"{what} has {fault}; {known}. Give a list in this order, or a dict by these names. "
            f"Received: {columns!r}."
        )
    return items


def match_labels(
    columns: Any, outputs: Sequence[Port], losses: Sequence[Any] | None = None
) -> tuple[Any, ...]:
    """Return the label of each output of a model, None for one without; nothing if none has one.

    `columns`: as in `match`. Outputs without a loss may be left out.
    `losses`: the loss of each output, None for an output that needs no label. By default all need
    one.

    Examples
    --------
    >>> outputs = (Port("kind", (3,)), Port("embedding", (8,)))
    >>> match_labels("label", outputs, ["mse", None])
    ('label', None)
    >>> match_labels(None, outputs, [None, None])
    ()
    """
    names = [port.name for port in outputs] or [""]
    needed = [True] * len(names) if losses is None else [loss is not None for loss in losses]
    if isinstance(columns, Mapping):
        free = (name for name, need in zip(names, needed, strict=True) if not need)
        columns = {**dict.fromkeys(free), **columns}
    else:
        several = isinstance(columns, list | tuple)
        items = [] if columns is None else list(columns) if several else [columns]
        if len(items) == sum(needed) < len(names):
            rest = iter(items)
            items = [next(rest) if need else None for need in needed]
        columns = items
    labels = match(columns, outputs, "label_col")
    for name, need, label in zip(names, needed, labels, strict=True):
        if need and label is None:
            raise ConfigurationError(
                f"label_col has nothing for {name or 'the output'!r}, whose loss needs a label. "
                "Name its column; for an autoencoder this is the one of its features. Received: "
                f"{columns!r}."
            )
    return labels if any(label is not None for label in labels) else ()


def check_fit(model: Any, fields: Sequence[Field]) -> None:
    """Refuse feature columns whose values do not have the shapes that the model takes.

    `fields`: the feature columns, in the order of the model's inputs.
    """
    ports = inputs_of(model)
    for port, field in zip(ports, fields, strict=bool(ports)):
        if fits(port.shape, field.shape):
            continue
        where = f" for input {port.name!r}" if len(ports) > 1 else ""
        raise SchemaError(
            f"Model {model.name!r} takes values of shape {port.shape}{where}. Received: column "
            f"{field.name!r} with values of shape {field.shape}. Reshape in the model "
            "(keras.layers.Reshape), build it for the data, or describe the column with "
            f"Field({field.name!r}, shape=...) in features_col."
        )


def check_one_output(class_weight: object, outputs: Sequence[Port]) -> None:
    """Refuse class weights for a model with several outputs, as Keras does."""
    if class_weight is not None and len(outputs) > 1:
        names = ", ".join(repr(port.name) for port in outputs)
        raise ConfigurationError(
            f"class_weight needs a model with a single output, and this one has {names}. "
            f"Received: class_weight={class_weight!r}. Use sample_weight_col, whose weights apply "
            "to all outputs."
        )


def _declared(model: Any, end: Literal["input", "output"]) -> tuple[list[Any], dict[int, str]]:
    """Return the inputs or outputs, and the keys of those that the model has in a dict."""
    # Keras raises AttributeError here for models whose layers it does not know.
    tensors = list(getattr(model, f"{end}s", None) or [])
    structure = getattr(model, end, None) if tensors else None
    if not isinstance(structure, Mapping):
        return tensors, {}
    return tensors, {id(tensor): key for key, tensor in structure.items()}


def _ports(names: Sequence[str], tensors: Sequence[Any]) -> tuple[Port, ...]:
    return tuple(
        Port(name, tuple(tensor.shape[1:]), str(tensor.dtype))
        for name, tensor in zip(names, tensors, strict=True)
    )


def fits(wanted: Sequence[int | None], shape: Sequence[int]) -> bool:
    """Whether a value has the shape that a model takes, whose axes of None have any length."""
    return len(wanted) == len(shape) and all(
        size in (None, number) for size, number in zip(wanted, shape, strict=True)
    )
