"""The driver's own copy of the user's model, compiled, and the archive that workers build it from.

A model is sent as one ``.keras`` archive, which includes its compilation: optimizer, loss and
metrics as Keras describes them, and the optimizer's state if it has one. Workers compile nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from distkeras_grid.engine.compile_settings import (
    CompileSettings,
    check_travels,
    compile_model,
)
from distkeras_grid.engine.custom_objects import serializable_objects
from distkeras_grid.engine.keras_model import (
    build_for,
    layers_of,
    model_from_bytes,
    model_to_bytes,
    weight_layout,
)
from distkeras_grid.engine.model_io import model_tensors
from distkeras_grid.errors import ConfigurationError

if TYPE_CHECKING:
    import keras

    from distkeras_grid.trainers.config import TrainerConfig


@dataclass(frozen=True)
class CompiledModel:
    """A compiled model, on the driver and as it is sent."""

    model: keras.Model  # The driver's copy, which the user receives at the end
    archive: bytes  # What workers load
    described: dict[str, Any]  # What `CompileSettings.to_json` returned, for the run's description
    # With what workers load the archive: the user's custom objects, and what is registered
    objects: dict[str, Any]


def compiled_copy(config: TrainerConfig, shapes: Sequence[Sequence[int]] = ()) -> CompiledModel:
    """Return a compiled copy of the user's model, which is not changed, except that it is built.

    `shapes`: shape of one row of each feature column, for a model that has no weights yet.
    """
    source, objects, settings = config.keras_model, config.objects, config.compile_settings()
    build_for(source, shapes)
    # Refused here if it has no weights yet; Keras would only warn and save it.
    weight_layout(source)
    _check_batches(source)
    archive = model_to_bytes(source)
    model = model_from_bytes(archive, objects)
    described = settings.to_json()
    if settings.empty:
        # The archive has the model's own compilation, with its optimizer's state.
        compile_model(model)
        return CompiledModel(model, archive, described, serializable_objects(archive, objects))
    # Built again from their description, so that the user's objects keep their state, and objects
    # without a name in custom_objects are refused here and not on an executor.
    compile_model(model, CompileSettings.from_json(described, objects), objects)
    check_travels(model)
    # Saved once more: Keras cannot exchange the compilation of an archive alone, which may have the
    # state of another optimizer.
    archive = model_to_bytes(model)
    return CompiledModel(model, archive, described, serializable_objects(archive, objects))


def _check_batches(model: keras.Model) -> None:
    """Refuse a model that depends on which rows are in a batch, and on how many."""
    stateful = next((x for x in layers_of(model) if getattr(x, "stateful", False) is True), None)
    if stateful is not None:
        raise ConfigurationError(
            f"Layer {stateful.name!r} carries its state on from batch to batch, and the rows of a "
            "DataFrame have no such order. Received: stateful=True. Build it without, with whole "
            "sequences in each row."
        )
    fixed = next((x for x in model_tensors(model, "inputs") if x.shape[0] is not None), None)
    if fixed is not None:
        raise ConfigurationError(
            f"Input {fixed.name!r} takes batches of {fixed.shape[0]} rows only, and the last batch "
            "of a worker may be shorter. Build it with keras.Input(shape=...), without batch_size."
        )
