"""Layers and models of the user's own, whose classes do not say how they are built again.

Keras saves a class by its ``get_config`` and builds it by ``from_config``. ``fit`` needs neither,
and most printed examples have neither. For a class without both, its arguments are what its
constructor has kept of them (``self.units = units``), and it is built from those that it takes.
The same holds for a ``compile`` of its own. What cannot be known is refused with the class's name.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from distkeras_grid.errors import ConfigurationError

# What Keras adds to the configuration of each layer.
_OF_EVERY_LAYER = ("name", "trainable", "dtype")


def describes_itself(kind: type, *methods: str) -> bool:
    """Return whether a class, or one of the user's that it derives from, has one of the methods."""
    own = (base for base in kind.__mro__ if not is_of_keras(base) and base is not object)
    return any(method in vars(base) for base in own for method in methods)


def is_of_keras(kind: type) -> bool:
    """Return whether Keras itself has a class."""
    return kind.__module__.startswith("keras.")


def has_own_compile(model: Any) -> bool:
    """Return whether a model's class has a ``compile`` that it describes to Keras by no method."""
    kind = type(model)
    described = describes_itself(kind, "get_compile_config", "compile_from_config")
    return describes_itself(kind, "compile") and not described


def compile_arguments(model: Any) -> dict[str, Any]:
    """Return what a model's own ``compile`` was called with, as Keras describes it."""
    import keras

    config = getattr(model._compile_config, "config", {}) if model.compiled else {}
    arguments = _method_arguments(model, "compile", config)
    return {name: keras.saving.serialize_keras_object(value) for name, value in arguments.items()}


@contextmanager
def described(layers: list[Any]) -> Iterator[None]:
    """Let Keras describe layers and models whose classes do not describe themselves."""
    import keras

    # Keras itself describes a layer's arguments that are plain values. Of a model it knows the
    # defaults alone, whatever was given.
    added: dict[str, list[Any]] = {
        "get_config": [
            layer
            for layer in layers
            if _says_nothing(type(layer), layer.get_config)
            and (isinstance(layer, keras.Model) or getattr(layer, "_auto_config", None) is None)
        ],
        "get_compile_config": [layer for layer in layers[:1] if has_own_compile(layer)],
    }
    functions = {"get_config": _arguments_of_init, "get_compile_config": compile_arguments}
    try:
        for name, owners in added.items():
            for layer in owners:
                # Not by Layer.__setattr__, which would track it.
                vars(layer)[name] = partial(functions[name], layer)
        yield
    finally:
        for name, owners in added.items():
            for layer in owners:
                vars(layer).pop(name, None)


def _arguments_of_init(layer: Any) -> dict[str, Any]:
    import keras

    arguments = _method_arguments(layer, "__init__", {})
    config = {name: keras.saving.serialize_keras_object(v) for name, v in arguments.items()}
    policy = keras.saving.serialize_keras_object(layer.dtype_policy)
    return {**config, "name": layer.name, "trainable": layer.trainable, "dtype": policy}


def compile_as_described(model: Any, config: Mapping[str, Any]) -> None:
    """Compile a model whose class has its own ``compile``, as `compile_arguments` has told."""
    import keras

    parameters = inspect.signature(model.compile).parameters
    if config.keys() <= parameters.keys():
        model.compile(**keras.saving.deserialize_keras_object(dict(config)))


def accept_parts(model: Any) -> None:
    """Regard a model without a ``call`` of its own as built, if all layers in it are."""
    parts = list(model._flatten_layers(include_self=False))
    if not model.built and parts and not describes_itself(type(model), "call"):
        model.built = all(part.built for part in parts)


def rebuilding(objects: Mapping[str, Any]) -> dict[str, Any]:
    """Return custom objects with which Keras builds classes that do not describe themselves."""
    import keras

    def adapted(item: Any) -> Any:
        layer = isinstance(item, type) and issubclass(item, keras.Layer)
        return _Rebuilt(item) if layer and _says_nothing(item, item.get_config) else item

    return {name: adapted(item) for name, item in objects.items()}


def _says_nothing(kind: type, get_config: Any) -> bool:
    """Return whether a class has a constructor of its own, and neither of Keras' two methods."""
    import keras

    default = (keras.Layer.get_config, keras.Model.get_config)
    own = describes_itself(kind, "__init__") and not describes_itself(kind, "from_config")
    return own and getattr(get_config, "__func__", get_config) in default


class _Rebuilt:
    """A class of the user's, with the ``from_config`` that it lacks."""

    def __init__(self, kind: type) -> None:
        self._kind: Any = kind

    def from_config(self, config: Mapping[str, Any]) -> Any:
        """Build a layer from the arguments that its constructor takes."""
        import keras

        if "input_layers" in config:
            # It was built from inputs and outputs, which Keras describes.
            return self._kind.from_config(config)
        values = {
            name: keras.saving.deserialize_keras_object(value)
            if isinstance(value, dict) and "class_name" in value
            else value
            for name, value in config.items()
        }
        parameters = inspect.signature(self._kind).parameters.values()
        if any(each.kind is each.VAR_KEYWORD for each in parameters):
            return self._kind(**values)
        taken = {each.name for each in parameters}
        layer = self._kind(**{name: value for name, value in values.items() if name in taken})
        rest = {name: values[name] for name in _OF_EVERY_LAYER if name in values.keys() - taken}
        layer.name = rest.get("name", layer.name)
        layer.trainable = rest.get("trainable", layer.trainable)
        layer.dtype_policy = rest.get("dtype", layer.dtype_policy)
        return layer


def _method_arguments(instance: Any, method: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a method's arguments: those in `config`, and those stored as attributes."""
    kind = type(instance)
    function = getattr(kind, method)
    attributes, arguments = _parameter_attributes(function), {}
    _, *parameters = inspect.signature(function).parameters.values()
    for each in parameters:
        if each.kind in (each.VAR_KEYWORD, each.VAR_POSITIONAL):
            continue
        if each.name in config:
            arguments[each.name] = config[each.name]
        elif each.name in attributes and hasattr(instance, attributes[each.name]):
            arguments[each.name] = getattr(instance, attributes[each.name])
        elif method != "__init__" or each.name not in _OF_EVERY_LAYER:
            needed = (
                "get_config(), which returns its constructor's arguments, and from_config()"
                if method == "__init__"
                else "get_compile_config() and compile_from_config()"
            )
            raise ConfigurationError(
                f"Nobody knows with which {each.name!r} {kind.__name__} was "
                f"{'built' if method == '__init__' else 'compiled'}. Write in {method} "
                f"self.{each.name} = {each.name}, or give {kind.__name__} {needed}."
            )
    return arguments


def _parameter_attributes(function: Any) -> dict[str, str]:
    """Return the parameters that a method writes into attributes as they are, and where."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return {}
    stored = {
        node.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    (body,) = tree.body
    attributes: dict[str, str] = {}
    for node in getattr(body, "body", ()):
        match node:
            case ast.Assign(
                targets=[ast.Attribute(value=ast.Name(id="self"), attr=attribute)],
                value=ast.Name(id=name),
            ) if name not in stored:
                attributes[name] = attribute
    return attributes
