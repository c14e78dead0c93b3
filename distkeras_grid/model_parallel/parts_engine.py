"""The engine of a model in parts: the master trains the last one, and devices those before it.

The parts before the last one compute its inputs, and take steps of their own with the gradients
that come back. They keep their own weights. These travel once per window: to the server, and from
there to the next attempt if this one dies.
"""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distkeras_grid.engine.keras_model import get_flat_weights, set_flat_weights, weight_layout
from distkeras_grid.engine.tensorflow import TensorFlowEngine
from distkeras_grid.model_parallel.device_group import (
    DeviceGroup,
    Places,
    RemoteWeights,
    gather,
    places,
    scatter,
)
from distkeras_grid.model_parallel.pipeline import scaled
from distkeras_grid.model_parallel.remote_module import GradientSum
from distkeras_grid.model_parallel.rpc import Array
from distkeras_grid.rows import RowBlock
from distkeras_grid.weights import Vector, WeightLayout


@dataclass(frozen=True)
class FullModelLayout:
    """What the master must know of the whole model."""

    layout: WeightLayout  # Layout of the whole vector
    places: tuple[Places, ...]  # Where the weights of each part are in it, the master's last

    @classmethod
    def of(cls, model: Any, parts: Sequence[Any]) -> FullModelLayout:
        """Return the layout of a model with these parts, the master's last."""
        return cls(weight_layout(model), tuple(places(model, part) for part in parts))


class PartsEngine(TensorFlowEngine):
    """Trains the master's part, and the others through their devices.

    `model`: the master's part; its inputs are the outputs of the parts before it.
    `group`: the devices of all parts before the master's.
    `scaling`: of the whole model's input.
    """

    def __init__(
        self,
        model: Any,
        whole: FullModelLayout,
        group: DeviceGroup,
        *,
        scaling: tuple[float, float] = (1.0, 0.0),
        **options: Any,
    ) -> None:
        super().__init__(model, **{**options, "jit": False})
        self._own_layout, self.layout = self.layout, whole.layout
        *others, self._own_places = whole.places
        self._others = RemoteWeights(group, others)
        self._group = group
        # No two passes have the same number.
        self._calls = itertools.count(1)
        self._input_scaling = scaling
        self._gradients = GradientSum()
        self._both_ways: dict[Any, Callable[..., Any]] = {}
        self._take_step: Callable[..., Any] | None = None
        self._warming = False

    @abstractmethod
    def _batch(self, x: Array, rest: Sequence[NDArray[Any]]) -> None:
        """Train a batch, and take a step on each device; `rest`: labels and weights."""

    @abstractmethod
    def _before(self, x: Array) -> Sequence[Array]:
        """Return the inputs of the master's part, without training."""

    def weights(self) -> Vector:
        """Return a copy of the whole model's weights as a flat vector."""
        vector = np.empty(self.layout.size, np.float32)
        self._collect(vector)
        return vector

    def warm_up(self, block: RowBlock) -> float:
        """Compile on all devices, and leave their weights as they were; see `KerasEngine`."""
        before = self.weights()
        self._warming = True
        try:
            seconds = super().warm_up(block)
        finally:
            self._warming = False
        self._others.put(before)
        return seconds

    def _trained(
        self, before: Vector, blocks: Iterable[RowBlock], after: Vector
    ) -> Mapping[str, Any]:
        self._load(before)
        # The devices take steps during the window, also if it fails.
        self._others.change()
        for number, block in enumerate(blocks):
            if number == 0:
                self._build_metrics(block)
                self.model.reset_metrics()
            for step in range(block.steps):
                x, *rest = (array[step] for array in block.arrays)
                self._batch(scaled(x, *self._input_scaling), rest)
                self._step_with_sum()
        self._collect(after)
        logs: Mapping[str, Any] = self.model.get_metrics_result()
        return logs

    def _step_with_sum(self) -> None:
        if self._take_step is None:
            import tensorflow as tf

            optimizer, variables = self.model.optimizer, self.model.trainable_variables
            self._take_step = tf.function(
                lambda gradients: optimizer.apply(gradients, variables), autograph=False
            )
        self._take_step(self._gradients.take())

    def _last(
        self, inputs: Sequence[Array], rest: Sequence[NDArray[Any]], share: float
    ) -> list[Array]:
        """Compute the master's part both ways, and add its gradients; return those of its inputs.

        `share`: weight of these rows' loss in that of the batch.
        """
        import tensorflow as tf

        arrays = [*inputs, *rest]
        key = tuple((array.dtype.str, array.shape[1:]) for array in arrays)
        if key not in self._both_ways:
            # Batches of all sizes take one graph.
            shapes = [tf.TensorSpec((None, *a.shape[1:]), a.dtype) for a in arrays]
            signature = [tf.TensorSpec((), tf.float32), *shapes]
            self._both_ways[key] = tf.function(
                self._forward_and_backward, input_signature=signature, autograph=False
            )
        tensors = [tf.constant(array) for array in arrays]
        gradients = self._both_ways[key](tf.constant(share, tf.float32), *tensors)
        self._gradients.add(gradients[len(inputs) :])
        return [np.asarray(gradient) for gradient in gradients[: len(inputs)]]

    def _forward_and_backward(self, share: Any, *arrays: Any) -> list[Any]:
        """Return the gradients of inputs and variables; body of a compiled function."""
        import keras
        import tensorflow as tf

        model = self.model
        inputs = list(arrays[: len(model.inputs)])
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            x, y, weight = keras.utils.unpack_x_y_sample_weight(self._data(arrays))
            prediction = model(x, training=True)
            loss = model.compute_loss(
                x=x, y=y, y_pred=prediction, sample_weight=weight, training=True
            )
            scaled_loss = model.optimizer.scale_loss(loss * share)
        # As Keras' own train_step.
        model._loss_tracker.update_state(loss, sample_weight=tf.shape(inputs[0])[0])
        model.compute_metrics(x, y, prediction, sample_weight=weight)
        values = [variable.value for variable in model.trainable_variables]
        gradients = tape.gradient(
            scaled_loss, [*inputs, *values], unconnected_gradients=tf.UnconnectedGradients.ZERO
        )
        return [tf.convert_to_tensor(gradient) for gradient in gradients]

    def _build_metrics(self, block: RowBlock) -> None:
        inputs = (np.zeros((1, 1, *tensor.shape[1:]), np.float32) for tensor in self.model.inputs)
        sample = block.part(slice(1), slice(1))
        super()._build_metrics(RowBlock(tuple(inputs), sample.y, sample.weight))

    def _test(self, arrays: Sequence[NDArray[Any]]) -> Mapping[str, Any]:
        x, *rest = arrays
        return super()._test([*self._before(scaled(x, *self._input_scaling)), *rest])

    def _load(self, weights: Vector) -> None:
        set_flat_weights(self.model, gather(weights, self._own_places), self._own_layout)
        self._others.put(weights)

    def _collect(self, vector: Vector) -> None:
        """Write the weights of all parts into the whole vector."""
        scatter(get_flat_weights(self.model, self._own_layout), self._own_places, vector)
        self._others.collect(vector)
