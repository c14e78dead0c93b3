"""Towers and the master that joins them, as one Keras model.

Towers T_1, ..., T_m see the same input z, and a master model M sees their outputs::

    y_j = T_j(z)        output = M([y_1 | y_2 | ...])

Khamkar, Distributed Environment For Parallel Neural Networks, section 6: wide networks as stacks of
smaller networks, which are trained in parallel.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from distkeras_grid.engine.compile_settings import adds_losses
from distkeras_grid.engine.keras_model import layers_of
from distkeras_grid.errors import ConfigurationError


def stack(towers: Sequence[Any], master: Any) -> Any:
    """Return towers and master as one model, which is the single-process model of `Towers`.

    `towers`: built models with one ``float32`` input of the same shape, one output, and different
    names.
    """
    import keras

    _check(towers, master)
    inputs = keras.Input(towers[0].inputs[0].shape[1:], name="towers_input")
    model = keras.Model(
        inputs, concatenate([tower(inputs) for tower in towers], master), name="towers"
    )
    if master.compiled:
        model.compile_from_config(master.get_compile_config())
    return model


def concatenate(outputs: Sequence[Any], master: Any) -> Any:
    """Return the master's output for the towers' outputs."""
    import keras

    if len(master.inputs) > 1:
        return master(list(outputs))
    if len(outputs) == 1:
        return master(outputs[0])
    return master(keras.layers.Concatenate(axis=-1)(list(outputs)))


def standalone_copy(part: Any) -> Any:
    """Return a copy of a part of a model, so that the whole model can be freed."""
    import keras

    copy = keras.models.clone_model(part)
    for variable, other in zip(copy.variables, part.variables, strict=True):
        variable.assign(other)
    return copy


def _check(towers: Sequence[Any], master: Any) -> None:
    if not towers:
        raise ConfigurationError("Towers needs at least one tower. Received: none.")
    for model in (*towers, master):
        if not getattr(model, "built", False) or not getattr(model, "inputs", None):
            raise ConfigurationError(
                "Towers and master are Sequential or functional models with an Input. Received: "
                f"{getattr(model, 'name', model)!r}."
            )
    names = [model.name for model in (*towers, master)]
    if len({*names}) < len(names):
        raise ConfigurationError(f"Each tower needs a name of its own. Received: {names}.")
    inputs = {(each.shape[1:], each.dtype) for tower in towers for each in tower.inputs}
    single = all(len(tower.inputs) == len(tower.outputs) == 1 for tower in towers)
    if not single or len(inputs) > 1 or {dtype for _, dtype in inputs} != {"float32"}:
        raise ConfigurationError(
            "All towers have one float32 input of the same shape, and one output. Received inputs: "
            f"{[(tower.name, [each.shape for each in tower.inputs]) for tower in towers]}."
        )
    if len(master.inputs) not in (1, len(towers)):
        raise ConfigurationError(
            "The master has one input for all towers together, or one for each. Received: "
            f"{len(master.inputs)} inputs for {len(towers)} towers."
        )
    for part in (*towers, master):
        if not part.trainable_variables:
            raise ConfigurationError(
                "Towers and master have weights that are trained, each its own. Received: model "
                f"{part.name!r}, which has none. Give it trainable layers."
            )
    for tower in towers:
        _check_apart(tower)
    _check_own_layers((*towers, master))


def _check_own_layers(parts: Sequence[Any]) -> None:
    """Refuse parts that share a layer with variables: each would train a copy."""
    owners: dict[int, str] = {}
    for part in parts:
        # Layers come after the models that they are in, which share their variables.
        for layer in reversed(layers_of(part)):
            for variable in layer.variables:
                owner = owners.setdefault(id(variable), part.name)
                if owner != part.name:
                    raise ConfigurationError(
                        "Towers and master are trained apart from each other, so each has layers "
                        f"of its own. Received: {owner!r} and {part.name!r}, which share layer "
                        f"{layer.name!r}. Build one for each."
                    )


def _check_apart(tower: Any) -> None:
    """Refuse a tower that would not be the same without the rest of the model."""
    # Keras has no public API for the mask of a tensor.
    if any(getattr(output, "_keras_mask", None) is not None for output in tower.outputs):
        raise ConfigurationError(
            f"A mask does not travel from a tower to the master. Received: tower {tower.name!r}, "
            "whose output carries one. Let it end within the tower, or use mask_zero=False."
        )
    if tower.losses or adds_losses(tower):
        raise ConfigurationError(
            "Losses of a tower (regularizers, add_loss) do not reach the master. Received: tower "
            f"{tower.name!r}, which adds losses. Use weight decay of the optimizer instead."
        )
