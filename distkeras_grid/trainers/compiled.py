"""The driver's own copy of the user's model, compiled, and the archive that workers build it from.

A model is sent as one ``.keras`` archive, which includes its compilation: optimizer, loss and
metrics as Keras describes them, and the optimizer's state if it has one. Workers compile nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from distkeras_grid.engine.compile_settings import (
    CompileSettings,
    check_travels,
    compile_model,
)
from distkeras_grid.engine.keras_model import model_from_bytes, model_to_bytes, weight_layout
from distkeras_grid.engine.own_objects import travelling_objects

if TYPE_CHECKING:
    import keras

    from distkeras_grid.trainers.request import ModelSource


@dataclass(frozen=True)
class CompiledModel:
    """A compiled model, on the driver and as it is sent.

    Parameters
    ----------
    model : keras.Model
        The driver's copy, which the user receives at the end.
    archive : bytes
        What workers load.
    described : dict
        What `CompileSettings.to_json` returned, for the run's description.
    objects : dict of str to object
        With what workers load the archive: the user's custom objects, and what is registered.
    """

    model: keras.Model
    archive: bytes
    described: dict[str, Any]
    objects: dict[str, Any]


def compiled_copy(source: ModelSource) -> CompiledModel:
    """Return a compiled copy of the user's model, which is not changed.

    Parameters
    ----------
    source : ModelSource
        The model, and how it is to be compiled.

    Raises
    ------
    ConfigurationError
        If the model has no weights yet, cannot be saved, loaded, compiled or trained, or if its
        compilation cannot be sent.
    """
    # Refused here if it has no weights yet; Keras would only warn and save it.
    weight_layout(source.model)
    archive = model_to_bytes(source.model)
    model = model_from_bytes(archive, source.objects)
    described = source.settings.to_json()
    if source.settings.empty:
        # The archive has the model's own compilation, with its optimizer's state.
        compile_model(model)
        return CompiledModel(model, archive, described, travelling_objects(archive, source.objects))
    # Built again from their description, so that the user's objects keep their state, and objects
    # without a name in custom_objects are refused here and not on an executor.
    settings = CompileSettings.from_json(described, source.objects)
    compile_model(model, settings, source.objects)
    check_travels(model)
    # Saved once more: Keras cannot exchange the compilation of an archive alone, which may have the
    # state of another optimizer.
    archive = model_to_bytes(model)
    return CompiledModel(model, archive, described, travelling_objects(archive, source.objects))
