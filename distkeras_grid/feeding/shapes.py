"""What a model takes and gives, and which columns go where."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from distkeras_grid.errors import ConfigurationError, SchemaError
from distkeras_grid.feeding.schema import Field


@dataclass(frozen=True)
class Port:
    """One input or one output of a model.

    Parameters
    ----------
    name : str
        As Keras names it: of an input its own name, of an output that of its layer; of both the
        key, where the model was built with a dict.
    shape : tuple of (int or None)
        Shape of one row.
    dtype : str
        As the model has it.
    """

    name: str
    shape: tuple[int | None, ...]
    dtype: str = "float32"

    @property
    def size(self) -> int | None:
        """Length of the last axis; None if nobody knows it."""
        return self.shape[-1] if self.shape else None


def inputs_of(model: Any) -> tuple[Port, ...]:
    """Return a model's inputs in its order; none of a class that declares none to Keras."""
    tensors, keys = _declared(model, "input")
    names = [keys.get(id(tensor), tensor.name) for tensor in tensors]
    return _ports(names, tensors)


def outputs_of(model: Any) -> tuple[Port, ...]:
    """Return a model's outputs in its order; none of a class that declares none to Keras."""
    tensors, keys = _declared(model, "output")
    layers = getattr(model, "output_names", None) or [tensor.name for tensor in tensors]
    names = [keys.get(id(t), layer) for t, layer in zip(tensors, layers, strict=True)]
    return _ports(names, tensors)


def match(given: Any, ports: Sequence[Port], what: str) -> tuple[Any, ...]:
    """Return one item for each input or output of a model, in the model's order.

    Parameters
    ----------
    given : object, list, tuple or mapping
        One item, which suits a model of one; one for each in the model's order; or one for each
        by its name.
    ports : sequence of Port
        The model's; empty of a model that declares none, which has one.
    what : str
        The argument, for errors.

    Raises
    ------
    ConfigurationError
        Names what has no item, or what the model does not have.

    Examples
    --------
    >>> ports = (Port("image", (8, 8)), Port("age", (1,)))
    >>> match({"age": "years", "image": "pixels"}, ports, "features_col")
    ('pixels', 'years')
    """
    names = [port.name for port in ports]
    known = f"the model has {', '.join(map(repr, names)) or 'one, which has no name'}"
    if isinstance(given, Mapping):
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ConfigurationError(
                f"{what} cannot be given by names: {known}, and {twice!r} occurs twice. "
                f"Give a list in this order. Received: {given!r}."
            )
        missing = [name for name in names if name not in given]
        unknown = [name for name in given if name not in names]
        if missing or unknown:
            fault = f"nothing for {missing[0]!r}" if missing else f"no place for {unknown[0]!r}"
            raise ConfigurationError(f"{what} has {fault}; {known}. Received: {given!r}.")
        return tuple(given[name] for name in names)
    items = tuple(given) if isinstance(given, list | tuple) else (given,)
    count = max(1, len(names))
    if len(items) != count:
        missing = names[len(items) :]
        fault = f"nothing for {missing[0]!r}" if missing else f"{len(items)} items for {count}"
        raise ConfigurationError(
            f"{what} has {fault}; {known}. Give a list in this order, or a dict by these names. "
            f"Received: {given!r}."
        )
    return items


def check_fit(model: Any, fields: Sequence[Field]) -> None:
    """Refuse feature columns whose values are not of the shapes that the model takes.

    Parameters
    ----------
    model : keras.Model
        A model; one whose shapes nobody knows, as of a class of the user's, is not checked.
    fields : sequence of Field
        The feature columns, in the order of the model's inputs.

    Raises
    ------
    SchemaError
        If shapes differ; names both, and the input where there are several.
    """
    ports = inputs_of(model)
    for port, field in zip(ports, fields, strict=bool(ports)):
        if _fits(port.shape, field.shape):
            continue
        where = f" for input {port.name!r}" if len(ports) > 1 else ""
        raise SchemaError(
            f"Column {field.name!r} holds values of shape {field.shape}, but model {model.name!r} "
            f"takes {port.shape}{where}. Reshape in the model (keras.layers.Reshape), build it for "
            f"the data, or describe the column with Field({field.name!r}, shape=...) in "
            "features_col."
        )


def check_one_output(class_weight: object, outputs: Sequence[Port]) -> None:
    """Refuse class weights for a model of several outputs, as Keras does.

    Raises
    ------
    ConfigurationError
        Names the outputs.
    """
    if class_weight is not None and len(outputs) > 1:
        names = ", ".join(repr(port.name) for port in outputs)
        raise ConfigurationError(
            "class_weight is only supported for models with a single output, this one has "
            f"{names}; use sample_weight_col, whose weights hold for all outputs. "
            f"Received: class_weight={class_weight!r}."
        )


def _declared(model: Any, end: Literal["input", "output"]) -> tuple[list[Any], dict[int, str]]:
    """Return the tensors of one end, and the keys of those that the model has in a dict."""
    # Models whose layers Keras does not know raise AttributeError here, by its own design.
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


def _fits(wanted: Sequence[int | None], given: Sequence[int]) -> bool:
    return len(wanted) == len(given) and all(
        size in (None, number) for size, number in zip(wanted, given, strict=True)
    )
