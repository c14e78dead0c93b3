"""A Keras model as a row of stages: where it can be cut, where it is cut, and its stages.

The model's graph can be cut at a tensor if nothing else leads from what is before it to what is
after it::

    h_r = S_r(h_{r-1})        output = S_last(...)

The slowest stage sets the pace of the pipeline. So a model is cut where its multiplications are
divided evenly, which are counted and not measured: every weight of a layer is used once for each
position of the layer's output.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

from distkeras_grid.engine.compile_settings import adds_losses, has_own_train_step
from distkeras_grid.engine.keras_model import calls_in_order, layers_of
from distkeras_grid.errors import ConfigurationError
from distkeras_grid.model_parallel.rows_apart import check_rows_apart


def check_stageable(model: Any, micro_batches: int) -> None:
    """Refuse a model that cannot be trained in stages as it is trained as a whole."""
    _check_ends(model)
    if has_own_train_step(model):
        raise ConfigurationError(
            f"A model in stages has no step of its own. Received: {type(model).__name__} with its "
            "own train_step. Compile loss and metrics in its place."
        )
    if model.losses or adds_losses(model):
        raise ConfigurationError(
            f"Model {model.name!r} adds losses (regularizers, add_loss), which the last stage does "
            "not see. Use weight decay of the optimizer in their place."
        )
    _check_masks(model)
    if micro_batches > 1:
        check_rows_apart(model)


def find_cuts(model: Any) -> dict[str, Any]:
    """Return the layers after which a model can be cut, in its order, and their outputs.

    A model is not cut between two uses of the same weights.
    """
    nodes = calls_in_order(model)
    last_use: dict[int, int] = {id(tensor): len(nodes) for tensor in model.outputs}
    for place, node in enumerate(nodes):
        for tensor in node.input_tensors:
            last_use[id(tensor)] = max(place, last_use.get(id(tensor), 0))
    calls = Counter(node.operation.name for node in nodes)
    open_weights = _open_weights(nodes)
    live: dict[int, Any] = {}
    cuts = {}
    for place, node in enumerate(nodes[:-1]):
        live.update((id(tensor), tensor) for tensor in node.output_tensors)
        live = {key: tensor for key, tensor in live.items() if last_use.get(key, -1) > place}
        if len(live) > 1 or open_weights[place] or not node.input_tensors:
            continue
        (only,) = live.values()
        name = node.operation.name
        if only.dtype == "float32" and calls[name] == 1 and only is node.output_tensors[0]:
            cuts[name] = only
    return cuts


def choose_cuts(model: Any, stages: int) -> list[str]:
    """Return where a model is cut into stages with about as many multiplications each.

    Of S stages, cut r is where the multiplications up to it are nearest to r / S of all, among the
    cuts that leave each stage weights to train.
    """
    import keras

    cuts = list(find_cuts(model))
    ends = [*cuts, None]
    costs, trained = [0.0] * len(ends), [0] * len(ends)
    number = 0
    for node in calls_in_order(model):
        layer, output = node.operation, node.output_tensors[0]
        weights = getattr(layer, "trainable_variables", ())
        positions = math.prod(size or 1 for size in output.shape[1:-1])
        # An Embedding looks its weights up.
        if not isinstance(layer, keras.layers.Embedding):
            costs[number] += positions * sum(math.prod(each.shape) for each in weights)
        trained[number] |= bool(weights)
        number += layer.name == ends[number]
    done, parts = [0.0, *accumulate(costs)], [0, *accumulate(trained)]
    if parts[-1] < stages:
        raise ConfigurationError(
            f"The model has {parts[-1]} parts with weights of their own that can be apart, for "
            f"{stages} workers. It can be cut after: {', '.join(cuts) or 'nowhere'}. Use fewer "
            "workers."
        )
    bounds = [0]
    for stage in range(1, stages):
        # Each stage has weights that are trained, also those after it.
        low, high = parts[bounds[-1]], parts[-1] - (stages - stage)
        stops = (n for n in range(bounds[-1] + 1, len(ends)) if low < parts[n] <= high)
        wanted = stage * done[-1] / stages
        bounds.append(min(stops, key=lambda stop: abs(done[stop] - wanted)))
    return [cuts[stop - 1] for stop in bounds[1:]]


def stages_of(model: Any, names: Sequence[str]) -> list[Any]:
    """Cut a model after the layers of these names; the stages share its layers and weights."""
    import keras

    cuts = find_cuts(model)
    if [name for name in cuts if name in names] != list(names):
        raise ConfigurationError(
            "Cuts are names of layers after which a single tensor leads on, in the order of the "
            f"model. It can be cut after: {', '.join(cuts) or 'none'}. Received: {list(names)}."
        )
    tensors = [model.inputs[0], *(cuts[name] for name in names), model.outputs[0]]
    stages = [
        keras.Model(start, output, name=f"stage_{number}")
        for number, (start, output) in enumerate(pairwise(tensors))
    ]
    for number, stage in enumerate(stages):
        if not stage.trainable_variables:
            raise ConfigurationError(
                f"Each stage has weights that are trained, and stage {number} (from 0) has none. "
                f"Received: cuts={list(names)}."
            )
    return stages


def _check_ends(model: Any) -> None:
    inputs, outputs = getattr(model, "inputs", None) or [], getattr(model, "outputs", None) or []
    if not getattr(model, "built", False) or not inputs:
        raise ConfigurationError(
            "A model in stages is a Sequential or functional one with an Input. Received: "
            f"{type(model).__name__} {model.name!r}."
        )
    if (len(inputs), len(outputs)) != (1, 1):
        raise ConfigurationError(
            "A model in stages has one input and one output. Received: "
            f"{len(inputs)} inputs and {len(outputs)} outputs of model {model.name!r}."
        )
    if str(inputs[0].dtype) != "float32":
        raise ConfigurationError(
            "Stages send float32 to each other, and so does the first worker to the first stage. "
            f"Received: an input of {inputs[0].dtype}. Declare it as float32; whole numbers up to "
            "16,777,216 stay exact, and an Embedding takes them."
        )


def _check_masks(model: Any) -> None:
    made = [
        layer.name
        for layer in layers_of(model)
        if getattr(layer, "mask_zero", False) or type(layer).__name__ == "Masking"
    ]
    # Layers of the user's may make one, too. Keras has no public API for the mask of a tensor.
    made += [
        node.operation.name
        for node in calls_in_order(model)
        if any(getattr(tensor, "_keras_mask", None) is not None for tensor in node.output_tensors)
    ]
    if made:
        raise ConfigurationError(
            f"A mask does not travel from stage to stage. Received: layer {made[0]!r}, which makes "
            "one. Use mask_zero=False, and sample weights."
        )


def _open_weights(nodes: Sequence[Any]) -> list[bool]:
    """Return for each call whether weights used up to it are used again after it."""
    uses: dict[int, list[int]] = {}
    for place, node in enumerate(nodes):
        for variable in getattr(node.operation, "variables", ()):
            uses.setdefault(id(variable), []).append(place)
    opened = [False] * len(nodes)
    for places in uses.values():
        for place in range(places[0], places[-1]):
            opened[place] = True
    return opened
