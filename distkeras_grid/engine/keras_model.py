"""Conversions of a Keras model: its variables to a flat vector, and the model to bytes."""

from __future__ import annotations

import inspect
import re
import tempfile
import warnings
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from distkeras_grid.errors import ConfigurationError
from distkeras_grid.rules import Rule
from distkeras_grid.weights import StateSection, Variable, WeightLayout

#: The name under which custom objects allow code in an archive, which is the user's own.
LAMBDAS = "__lambda__"
# Arguments that Keras gives by itself when it builds a model again, and those without a name.
_OF_KERAS = {"name", "trainable", "dtype", "inputs", "outputs"}
_VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_OWN_COMPILE = "`compile\\(\\)` was not called"
# The states of random generators, which Keras does not save, follow this in an archive's comment.
_GENERATORS = b"distkeras_grid generators:"
# Bytes of the description of one variable in a worker's own state, and a little more.
STATE_OVERHEAD = 1024


@dataclass(frozen=True)
class ModelVariables:
    """The variables of a model that are in the flat vector."""

    trainable: tuple[Any, ...]  # In the model's order
    # Float variables without gradient of layers that train, such as the moving mean and variance of
    # batch normalization
    statistics: tuple[Any, ...]

    @property
    def all(self) -> tuple[Any, ...]:
        """All variables in the order of the vector."""
        return self.trainable + self.statistics


def layers_of(model: Any) -> list[Any]:
    """Return the model and all layers in it, at any depth."""
    # Keras has no public API for the layers inside a composite layer.
    return list(model._flatten_layers())


def calls_in_order(model: Any) -> list[Any]:
    """Return the calls of layers that lead to a model's outputs, each after those that it needs."""
    ordered: list[Any] = []
    ids: set[int] = set()
    # Not recursive, because a model may have more layers than Python has frames.
    waiting: list[tuple[Any, bool]] = [(_call_of(tensor), False) for tensor in model.outputs]
    while waiting:
        call, ready = waiting.pop()
        if ready:
            ordered.append(call)
        elif id(call) not in ids:
            ids.add(id(call))
            waiting.append((call, True))
            waiting += [(_call_of(tensor), False) for tensor in call.input_tensors]
    return ordered


def _call_of(tensor: Any) -> Any:
    # Keras has no public API for the call that has made a tensor.
    history = tensor._keras_history
    return history.operation._inbound_nodes[history.node_index]


def model_variables(model: Any) -> ModelVariables:
    """Sort a model's variables."""
    if not model.built or not model.variables:
        raise ConfigurationError(
            f"Model {model.name!r} has no weights yet. Call it on one batch first."
        )
    frozen = {id(v) for layer in layers_of(model) if not layer.trainable for v in layer.variables}
    trainable = tuple(model.trainable_variables)
    statistics = tuple(
        v
        for v in model.non_trainable_variables
        if id(v) not in frozen and str(v.dtype).startswith(("float", "bfloat"))
    )
    if not trainable:
        raise ConfigurationError(
            f"Model {model.name!r} has no trainable weights. Unfreeze a layer and compile again."
        )
    for variable in trainable + statistics:
        if variable.dtype != "float32":
            raise ConfigurationError(
                f"Variable {variable.path!r} is {variable.dtype}. Weights travel as float32, so "
                "build the model with float32 weights (a mixed precision policy keeps them so)."
            )
    return ModelVariables(trainable, statistics)


def weight_layout(model: Any) -> WeightLayout:
    """Return the layout of a model's flat vector."""
    variables = model_variables(model)
    return WeightLayout(
        _described(variables.trainable),
        _described(variables.statistics),
    )


def state_section(variables: Iterable[Any]) -> StateSection:
    """Return the section for variables of an optimizer, in their own types."""
    return StateSection(tuple(_variable(v, str(v.dtype)) for v in variables))


def shared_section(model: Any) -> StateSection:
    """Return the section of the optimizer's state that workers share if they make the steps."""
    if not model.optimizer.built:
        model.optimizer.build(model.trainable_variables)
    return state_section(model.optimizer.variables)


def worker_state_limit(model: Any) -> int:
    """Return how many bytes a worker's own state may have, as `WorkerState` packs it.

    It has the weights, compression's residual and velocity, the optimizer with a vector of sums or
    of momentum, counters and random generators.
    """
    if not model.optimizer.built:
        model.optimizer.build(model.trainable_variables)
    variables = [*model.variables, *model.optimizer.variables]
    size = sum(_variable(v, str(v.dtype)).nbytes for v in variables)
    # Names, shapes and the gaps between arrays.
    return 5 * size + STATE_OVERHEAD * (len(variables) + 1)


def build_for(model: Any, shapes: Sequence[Sequence[int]]) -> None:
    """Create a model's weights for inputs of some shapes, as ``fit`` does; otherwise leave it.

    `shapes`: shape of one row of each feature column.
    """
    import keras

    accept_parts(model)
    if (model.built and model.variables) or not shapes:
        return
    inputs = tuple(keras.Input(tuple(shape)) for shape in shapes)
    try:
        # Symbolic: layers are built and nothing is computed.
        model(inputs[0] if len(inputs) == 1 else inputs, training=False)
    except Exception as error:
        raise ConfigurationError(
            f"Model {model.name!r} has no weights yet, and its call() fails with features of shape "
            f"{', '.join(map(str, shapes))}: {_cause(error)} Call it on one batch first."
        ) from error


def normalizations(model: Any) -> list[Any]:
    """Return the trainable layers of batch normalization, in the model's order."""
    import keras

    kind = keras.layers.BatchNormalization
    return [layer for layer in layers_of(model) if isinstance(layer, kind) and layer.trainable]


def get_flat_weights(
    model: Any, layout: WeightLayout | None = None
) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return the values of a model's variables as a new flat vector."""
    layout = layout or weight_layout(model)
    variables = model_variables(model).all
    return layout.flatten([np.asarray(variable) for variable in variables])


def set_flat_weights(
    model: Any,
    vector: np.ndarray[Any, np.dtype[np.float32]],
    layout: WeightLayout | None = None,
) -> None:
    """Write a flat vector into a model.

    `vector`: shape ``(layout.size,)``, ``float32``.
    """
    layout = layout or weight_layout(model)
    variables = model_variables(model).all
    # A copy, because JAX may use aligned memory where it is, and the caller goes on writing there.
    for variable, part in zip(variables, layout.unflatten(vector.copy()), strict=True):
        variable.assign(part)


def set_center(
    model: Any, center: np.ndarray[Any, np.dtype[np.float32]], layout: WeightLayout, rule: Rule
) -> None:
    """Write a center into the driver's model, with the weights' constraints.

    A sum or a mean of several workers' weights may leave the set that a constraint allows. Weights
    that are one worker's own obey already, and are left bit for bit.

    `center`: shape ``(layout.size,)``, ``float32``.
    """
    import keras

    set_flat_weights(model, center, layout)
    if rule.traits.reply_has_vector:
        for variable in model.trainable_variables:
            if variable.constraint is not None:
                value = keras.ops.convert_to_tensor(np.asarray(variable))
                variable.assign(variable.constraint(value))


def initial_weights(model: Any, seed: Sequence[int]) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return newly drawn initial weights as a flat vector, without changing the model.

    What batch normalization has learned is as new, too. Other statistics, such as those that
    ``Normalization.adapt`` has found, stay as they are.
    """
    import keras

    word = np.random.SeedSequence(list(seed)).generate_state(1)[0]
    keras.utils.set_random_seed(int(word))
    kinds = {type(layer) for layer in layers_of(model)}
    own = {keras.saving.get_registered_name(kind): kind for kind in kinds if not _is_of_keras(kind)}
    with keras.saving.custom_object_scope(own):
        other = type(model).from_config(model.get_config())
    accept_parts(other)
    if not other.built:
        other.build_from_config(model.get_build_config())
        # As Keras does when it loads one.
        other.built = True
    mine, new = model_variables(model).all, model_variables(other).all
    learned = {id(v) for layer in normalizations(model) for v in layer.variables}
    learned |= {id(v) for v in model.trainable_variables}
    chosen = (b if id(a) in learned else a for a, b in zip(mine, new, strict=True))
    return weight_layout(model).flatten([np.asarray(variable) for variable in chosen])


def seed_generators(model: Any) -> list[Any]:
    """Return the states of a model's random generators (dropout, noise, augmentation)."""
    return [v for v in model.non_trainable_variables if v.name == "seed_generator_state"]


def counters(model: Any) -> list[Any]:
    """Return a model's variables that are no floats: counters, flags, states of generators."""
    return [v for v in model.variables if not str(v.dtype).startswith(("float", "bfloat"))]


def model_to_bytes(model: Any) -> bytes:
    """Return a model as a ``.keras`` archive."""
    _refuse_undescribed(model)
    with tempfile.TemporaryDirectory(prefix="distkeras-grid-") as folder:
        path = Path(folder) / "model.keras"
        try:
            model.save(path)
        except (NotImplementedError, TypeError, ValueError) as error:
            raise ConfigurationError(
                f"Keras cannot save model {model.name!r}: {_cause(error)} Classes of your own need "
                "get_config() that returns their constructor's arguments."
            ) from error
        _add_generators(path, model)
        return path.read_bytes()


def model_from_bytes(archive: bytes, custom_objects: Mapping[str, Any] | None = None) -> Any:
    """Build the model of a ``.keras`` archive."""
    import keras

    with tempfile.TemporaryDirectory(prefix="distkeras-grid-") as folder:
        path = Path(folder) / "model.keras"
        path.write_bytes(archive)
        try:
            with warnings.catch_warnings():
                # compile_model reports a class with its own compile() as an error.
                warnings.filterwarnings("ignore", message=_OWN_COMPILE)
                # An optimizer that was saved before its first step has no state to load.
                warnings.filterwarnings("ignore", message="Skipping variable loading for optim")
                objects = dict(custom_objects or {})
                safe = objects.pop(LAMBDAS, None) is None
                # A scope, because a class may be registered, too.
                with keras.saving.custom_object_scope(objects):
                    model = keras.saving.load_model(path, objects, safe_mode=safe)
                    accept_parts(model)
        except (NameError, OSError, TypeError, ValueError) as error:
            raise ConfigurationError(
                f"Keras cannot load the model: {_cause(error)} {_remedy(error)} "
                f"Received: custom_objects={sorted(custom_objects or {})}"
            ) from error
        _take_generators(path, model)
        return model


def accept_parts(model: Any) -> None:
    """Regard a model without a ``call`` of its own as built, if all layers in it are."""
    import keras

    parts = list(model._flatten_layers(include_self=False))
    if not model.built and parts and type(model).call is keras.Model.call:
        model.built = all(part.built for part in parts)


def _refuse_undescribed(model: Any) -> None:
    """Refuse a class that Keras would build again with the defaults of some of its arguments."""
    import keras

    for layer in layers_of(model):
        kind: Any = type(layer)
        constructor, description = _definer(kind, "__init__"), _definer(kind, "get_config")
        if (
            issubclass(kind, keras.Sequential)
            and not _is_of_keras(constructor)
            and _is_of_keras(_definer(kind, "from_config"))
            and not _is_empty_at_first(kind)
        ):
            raise ConfigurationError(
                f"Keras builds {kind.__name__} again by its name alone, and adds its layers then. "
                f"Its constructor makes layers, or needs more than a name. Return "
                f"keras.Sequential([...]) from a function, or give {kind.__name__} from_config()."
            )
        if _is_of_keras(constructor) or (
            issubclass(description, constructor) and not _is_of_keras(description)
        ):
            continue
        try:
            # Of models without one of their own it has the defaults, whatever was given; layers
            # of a Sequential model are added.
            of_models = {"layers": None} if isinstance(layer, keras.Sequential) else {}
            config = of_models if isinstance(layer, keras.Model) else layer.get_config()
        except NotImplementedError:
            # Keras refuses it in its own words.
            continue
        _, *parameters = inspect.signature(kind.__init__).parameters.values()
        named = [each.name for each in parameters if each.kind not in _VARIABLE]
        if unknown := [each for each in named if each not in {*_OF_KERAS, *config}]:
            raise ConfigurationError(
                f"Keras does not know with which {', '.join(unknown)} {kind.__name__} was built. "
                f"Give {kind.__name__} get_config(), which returns its constructor's arguments."
            )


def _is_empty_at_first(kind: Any) -> bool:
    """Whether a Sequential class can be built by a name alone, and then has no layers yet."""
    try:
        return not kind(name="empty").layers
    except (TypeError, ValueError):
        return False


def _definer(kind: type, name: str) -> type:
    """Return the class whose method another one has."""
    return next(each for each in kind.__mro__ if name in vars(each))


def _is_of_keras(kind: type) -> bool:
    return kind.__module__.startswith("keras.")


def _cause(error: BaseException) -> str:
    """Return the first cause of Keras' error in one line, without the configuration in it."""
    while (before := error.__cause__ or error.__context__) is not None:
        error = before
    words = re.split(r"Full object config|config=|Example:", str(error))[0].split()
    return f"{' '.join(words).rstrip('. ')}."


def _remedy(error: BaseException) -> str:
    cause = _cause(error)
    if "lambda" in cause:
        return (
            "Use a function with a name, and give it in custom_objects; or call "
            "keras.config.enable_unsafe_deserialization() first, if the model is your own."
        )
    if "__init__()" in cause:
        return (
            "Let the constructor of that class take **kwargs for super().__init__(**kwargs), and "
            "give the class get_config(), which returns its own arguments."
        )
    return "Name layers, losses and metrics of your own in custom_objects={...}."


def _add_generators(path: Path, model: Any) -> None:
    # The archive's comment, because for any further member Keras unpacks the archive to the disk.
    states = [np.asarray(variable).astype("<u4") for variable in seed_generators(model)]
    if states:
        with zipfile.ZipFile(path, "a") as archive:
            archive.comment = _GENERATORS + np.concatenate(states).tobytes()


def _take_generators(path: Path, model: Any) -> None:
    with zipfile.ZipFile(path) as archive:
        comment = archive.comment
    variables, size = seed_generators(model), len(comment) - len(_GENERATORS)
    # Another program may have written the archive, or another comment.
    if comment.startswith(_GENERATORS) and size == 8 * len(variables):
        states = np.frombuffer(comment, "<u4", offset=len(_GENERATORS)).reshape(-1, 2)
        for variable, state in zip(variables, states, strict=True):
            variable.assign(state.astype(variable.dtype))


def _described(variables: tuple[Any, ...]) -> tuple[Variable, ...]:
    return tuple(_variable(v, "float32") for v in variables)


def _variable(variable: Any, dtype: str) -> Variable:
    return Variable(str(variable.path), tuple(int(n) for n in variable.shape), dtype)
