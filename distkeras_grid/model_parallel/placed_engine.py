"""The engine of a model whose layers are on several devices: the last stage, and all others."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distkeras_grid.engine.keras_model import get_flat_weights, set_flat_weights
from distkeras_grid.engine.tensorflow import TensorFlowEngine
from distkeras_grid.model_parallel.device_group import (
    DeviceGroup,
    Places,
    RemoteWeights,
    gather,
    scatter,
)
from distkeras_grid.model_parallel.pipeline import infer, micro_batch_bounds, scaled, train
from distkeras_grid.model_parallel.remote_module import GradientSum
from distkeras_grid.model_parallel.rpc import Array
from distkeras_grid.rows import RowBlock
from distkeras_grid.weights import Vector, WeightLayout


@dataclass(frozen=True)
class FullModelLayout:
    """What the last stage must know of the whole model."""

    layout: WeightLayout  # Layout of the whole vector
    places: tuple[Places, ...]  # Where the weights of each stage are in it


class PlacedEngine(TensorFlowEngine):
    """Trains the last stage, and the others through their devices.

    A batch is cut into micro-batches. Each one's loss is weighted by its share of the rows, so that
    the sums of the gradients are those of the batch, and each stage takes one step for a batch.

    The stages keep their own weights. These travel once per window: to the server, and from there
    to the next attempt if this one dies.

    `group`: the devices of all stages before the last.
    `on_waiting`: called once, with the share of the time of a batch in which stages waited.
    """

    def __init__(
        self,
        model: Any,
        whole: FullModelLayout,
        group: DeviceGroup,
        micro_batches: int,
        *,
        scaling: tuple[float, float] = (1.0, 0.0),
        on_waiting: Callable[[float], None] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(model, **{**options, "jit": False})
        self._own_layout, self.layout = self.layout, whole.layout
        *others, self._own_places = whole.places
        self._others = RemoteWeights(group, others)
        self._group = group
        self._calls = itertools.count(1)
        self._micro_batches = micro_batches
        self._input_scaling = scaling
        self._on_waiting = on_waiting
        self._gradients = GradientSum()
        self._micro: dict[Any, Callable[..., Any]] = {}
        self._take_step: Callable[..., Any] | None = None
        self._warming = False

    def weights(self) -> Vector:
        """Return a copy of the whole model's weights as a flat vector."""
        vector = np.empty(self.layout.size, np.float32)
        self._collect(vector)
        return vector

    def warm_up(self, block: RowBlock) -> float:
        """Compile on all stages, and leave their weights as they were; see `ModelEngine`."""
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
        # The stages take steps during the window, also if it fails.
        self._others.change()
        waited = None
        for number, block in enumerate(blocks):
            if number == 0:
                self._build_metrics(block)
                self.model.reset_metrics()
            for step in range(block.steps):
                waited = self._batch([array[step] for array in block.arrays])
        self._collect(after)
        if self._on_waiting is not None and waited is not None and not self._warming:
            self._on_waiting(waited)
            self._on_waiting = None
        logs: Mapping[str, Any] = self.model.get_metrics_result()
        return logs

    def _batch(self, arrays: Sequence[NDArray[Any]]) -> float | None:
        """Train a batch, and take a step on each stage; return what `pipeline.train` returns."""
        x, *rest = arrays
        bounds = micro_batch_bounds(len(x), self._micro_batches)
        inputs = [scaled(x[start:stop], *self._input_scaling) for start, stop in bounds]

        def last(number: int, x_part: Array) -> Array:
            start, stop = bounds[number]
            return self._last(x_part, [a[start:stop] for a in rest], (stop - start) / len(x))

        # No two passes have the same number.
        first_call = next(self._calls) * self._micro_batches
        waited = train(self._group, inputs, last, first_call)
        if self._take_step is None:
            import tensorflow as tf

            optimizer, variables = self.model.optimizer, self.model.trainable_variables
            self._take_step = tf.function(
                lambda gradients: optimizer.apply(gradients, variables), autograph=False
            )
        self._take_step(self._gradients.take())
        return waited

    def _last(self, x: Array, rest: Sequence[NDArray[Any]], share: float) -> Array:
        """Compute a micro-batch on the last stage, both ways; return its input's gradient."""
        import tensorflow as tf

        arrays = [x, *rest]
        key = tuple((array.dtype.str, array.shape[1:]) for array in arrays)
        if key not in self._micro:
            # Batches of all sizes take one graph.
            shapes = [tf.TensorSpec((None, *a.shape[1:]), a.dtype) for a in arrays]
            signature = [tf.TensorSpec((), tf.float32), *shapes]
            self._micro[key] = tf.function(
                self._micro_batch, input_signature=signature, autograph=False
            )
        tensors = [tf.constant(array) for array in arrays]
        dx, gradients = self._micro[key](tf.constant(share, tf.float32), *tensors)
        self._gradients.add(gradients)
        return np.asarray(dx)

    def _micro_batch(self, share: Any, inputs: Any, *rest: Any) -> tuple[Any, list[Any]]:
        """Return the gradients of a micro-batch's part of the loss; body of a compiled function."""
        import keras
        import tensorflow as tf

        model = self.model
        with tf.GradientTape() as tape:
            if self._group.others:
                tape.watch(inputs)
            x, y, weight = keras.utils.unpack_x_y_sample_weight(self._data([inputs, *rest]))
            prediction = model(x, training=True)
            loss = model.compute_loss(
                x=x, y=y, y_pred=prediction, sample_weight=weight, training=True
            )
            scaled_loss = model.optimizer.scale_loss(loss * share)
        # As Keras' own train_step.
        model._loss_tracker.update_state(loss, sample_weight=tf.shape(inputs)[0])
        model.compute_metrics(x, y, prediction, sample_weight=weight)
        values = [variable.value for variable in model.trainable_variables]
        dx, *gradients = tape.gradient(scaled_loss, [inputs, *values])
        return tf.zeros_like(inputs) if dx is None else dx, [
            tf.zeros(value.shape) if gradient is None else tf.convert_to_tensor(gradient)
            for gradient, value in zip(gradients, values, strict=True)
        ]

    def _build_metrics(self, block: RowBlock) -> None:
        zeros = np.zeros((1, 1, *self.model.inputs[0].shape[1:]), np.float32)
        sample = block.part(slice(1), slice(1))
        super()._build_metrics(RowBlock((zeros,), sample.y, sample.weight))

    def _test(self, arrays: Sequence[NDArray[Any]]) -> Mapping[str, Any]:
        x, *rest = arrays
        return super()._test([infer(self._group, scaled(x, *self._input_scaling)), *rest])

    def _load(self, weights: Vector) -> None:
        set_flat_weights(self.model, gather(weights, self._own_places), self._own_layout)
        self._others.put(weights)

    def _collect(self, vector: Vector) -> None:
        """Write the weights of all stages into the whole vector."""
        scatter(get_flat_weights(self.model, self._own_layout), self._own_places, vector)
        self._others.collect(vector)
