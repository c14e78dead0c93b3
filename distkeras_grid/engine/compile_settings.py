"""How a model is trained: optimizer, loss and metrics, in the form that is sent to workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from distkeras_grid.engine.model_io import model_tensors, pack_like_model
from distkeras_grid.errors import ConfigurationError, UnknownArgumentError
from distkeras_grid.rules.parameters import check_positive

#: Length of an input's axis of any length, in a call that only inspects a model.
ANY_LENGTH = 64
OWN_COMPILE = (
    "A class with its own compile() needs get_compile_config() and compile_from_config() to travel"
)


@dataclass(frozen=True)
class CompileSettings:
    """What a trainer's arguments change in the model's own ``compile``.

    Notes
    -----
    Settings that are ``None`` are taken from the model's own ``compile``. If all are ``None``, the
    model is not changed, and its optimizer keeps its state.
    """

    optimizer: Any = None  # Name or instance
    loss: Any = None  # loss and metrics and loss_weights: As in ``keras.Model.compile``
    metrics: Any = None
    loss_weights: Any = None
    learning_rate: float | None = None  # Rate of an optimizer that is given by name

    def __post_init__(self) -> None:
        if self.learning_rate is None:
            return
        check_positive("learning_rate", self.learning_rate)
        if not isinstance(self.optimizer, str):
            raise ConfigurationError(
                "learning_rate sets the rate of an optimizer given by name, such as 'adam'; an "
                "optimizer instance, and the one of the model's own compile, have theirs. "
                f"Received: learning_rate={self.learning_rate!r}, optimizer={self.optimizer!r}"
            )

    @property
    def empty(self) -> bool:
        """Whether nothing was given."""
        return all(getattr(self, field.name) is None for field in fields(self))

    def to_json(self) -> dict[str, Any]:
        """Return the settings as JSON. Names stay names; objects become their Keras config."""
        import keras

        return {
            field.name: keras.saving.serialize_keras_object(getattr(self, field.name))
            for field in fields(self)
        }

    @classmethod
    def from_json(
        cls, data: Mapping[str, Any], custom_objects: Mapping[str, Any] | None = None
    ) -> CompileSettings:
        """Build the settings that `to_json` described."""
        import keras

        names = [field.name for field in fields(cls)]
        if unknown := sorted(set(data) - set(names)):
            raise UnknownArgumentError.among(cls.__name__, unknown, names)
        try:
            values = {
                # A copy, because Keras replaces the description of a schedule by the schedule.
                name: keras.saving.deserialize_keras_object(
                    deepcopy(value), custom_objects=dict(custom_objects or {}), safe_mode=True
                )
                for name, value in data.items()
            }
        except (TypeError, ValueError) as error:
            raise ConfigurationError(
                f"The optimizer, loss or metrics cannot be built: {error}. Name your own in "
                f"custom_objects. Received: custom_objects={sorted(custom_objects or {})}"
            ) from error
        return cls(**values)


def compile_model(
    model: Any,
    settings: CompileSettings | None = None,
    custom_objects: Mapping[str, Any] | None = None,
) -> None:
    """Compile a model as the settings say, and check that it can be trained."""
    if settings is not None and not settings.empty:
        _compile(model, settings, custom_objects or {})
    if not model.compiled:
        raise ConfigurationError(
            f"Model {model.name!r} is not compiled. Call model.compile(optimizer=..., loss=...) "
            f"or give the trainer worker_optimizer and loss. {OWN_COMPILE}"
        )
    if not _has_loss(model):
        raise ConfigurationError(
            f"Model {model.name!r} has no loss. Give one to the trainer or to model.compile, "
            "such as loss='sparse_categorical_crossentropy'. Received: loss=None."
        )


def check_travels(model: Any) -> None:
    """Refuse a compilation that would not arrive with the model's archive.

    Keras leaves a model uncompiled when it loads it, if its class has a ``compile`` of its own and
    none of the two methods that describe it.
    """
    import keras

    kind = type(model)
    own = kind.compile is not keras.Model.compile
    if own and kind.compile_from_config is keras.Model.compile_from_config:
        raise ConfigurationError(
            f"The compilation of {kind.__name__} {model.name!r} cannot travel to the workers. "
            f"{OWN_COMPILE}"
        )


def _compile(model: Any, settings: CompileSettings, custom_objects: Mapping[str, Any]) -> None:
    import keras

    # The engine decides about XLA and steps_per_execution.
    names = ("optimizer", "loss", "loss_weights", "metrics", "weighted_metrics", "run_eagerly")
    values = {name: getattr(settings, name, None) for name in names}
    try:
        own: dict[str, Any] = keras.saving.deserialize_keras_object(
            model.get_compile_config(), custom_objects=dict(custom_objects)
        )
        arguments = {
            name: own.get(name) if values[name] is None else values[name] for name in names
        }
        # Arguments that are not given keep the defaults of Keras.
        arguments = {name: value for name, value in arguments.items() if value is not None}
        if settings.learning_rate is not None:
            optimizer = keras.optimizers.get(settings.optimizer)
            optimizer.learning_rate = settings.learning_rate
            arguments["optimizer"] = optimizer
        model.compile(**arguments)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(
            f"Keras does not compile model {model.name!r} with these settings: {error}. "
            f"Received: {settings}"
        ) from error


def _has_loss(model: Any) -> bool:
    import keras

    return (
        model.loss is not None
        or has_own_train_step(model)
        or type(model).compute_loss is not keras.Model.compute_loss
        or adds_losses(model)
    )


def adds_losses(model: Any) -> bool:
    """Return whether layers add losses in training, beside the penalties on weights.

    Keras knows them only after a call with data. The call made here changes nothing in the model.
    """
    inputs = model_tensors(model, "inputs")
    if not inputs:
        return True
    examples = [np.zeros(_example_shape(x.shape), x.dtype) for x in inputs]
    zeros = pack_like_model(model, "input", examples)
    trained, others = (
        [variable.value for variable in variables]
        for variables in (model.trainable_variables, model.non_trainable_variables)
    )
    *_, losses = model.stateless_call(trained, others, zeros, training=True, return_losses=True)
    penalties = sum(variable.regularizer is not None for variable in model.trainable_variables)
    return len(losses) > penalties


def _example_shape(shape: Sequence[int | None]) -> list[int]:
    """Return the shape of two rows; axes of any length get one that most layers take."""
    rows, *others = shape
    return [rows or 2, *(length or ANY_LENGTH for length in others)]


def has_own_train_step(model: Any) -> bool:
    """Return whether the model's class, or the instance, replaces Keras' ``train_step``."""
    import keras

    return "train_step" in vars(model) or type(model).train_step is not keras.Model.train_step
