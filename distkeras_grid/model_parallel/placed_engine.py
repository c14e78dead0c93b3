"""The engine of the last stage of a model in stages: the master's, which drives all others."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distkeras_grid.engine.keras_model import get_flat_weights, set_flat_weights
from distkeras_grid.engine.tensorflow import TensorFlowEngine
from distkeras_grid.model_parallel.device_group import DeviceGroup
from distkeras_grid.model_parallel.pipeline import infer, micro_batch_bounds, scaled, train
from distkeras_grid.model_parallel.remote_module import GradientSum
from distkeras_grid.model_parallel.rpc import Array
from distkeras_grid.rows import RowBlock
from distkeras_grid.weights import Vector


class PlacedEngine(TensorFlowEngine):
    """Trains the last stage, batch by batch in micro-batches, and lets the others train.

    Each micro-batch's loss is weighted by its share of the rows, so that the sums of the gradients
    are those of the batch, and each stage takes one step for a batch.

    `model`: the last stage.
    `group`: the devices of the stages before it.
    `scaling`: of the whole model's input.
    """

    def __init__(
        self,
        model: Any,
        group: DeviceGroup,
        micro_batches: int,
        *,
        scaling: tuple[float, float] = (1.0, 0.0),
        **options: Any,
    ) -> None:
        super().__init__(model, **{**options, "jit": False})
        self._group = group
        self._micro_batches = micro_batches
        # No two passes have the same number.
        self._calls = itertools.count(1)
        self._input_scaling = scaling
        self._gradients = GradientSum()
        self._both_ways: dict[Any, Callable[..., Any]] = {}
        self._take_step: Callable[..., Any] | None = None

    def _trained(
        self, before: Vector, blocks: Iterable[RowBlock], after: Vector
    ) -> Mapping[str, Any]:
        set_flat_weights(self.model, before, self.layout)
        for number, block in enumerate(blocks):
            if number == 0:
                self._build_metrics(block)
                self.model.reset_metrics()
            for step in range(block.steps):
                x, *rest = (array[step] for array in block.arrays)
                self._batch(scaled(x, *self._input_scaling), rest)
        np.copyto(after, get_flat_weights(self.model, self.layout))
        logs: Mapping[str, Any] = self.model.get_metrics_result()
        return logs

    def _batch(self, x: Array, rest: Sequence[NDArray[Any]]) -> None:
        """Train a batch on all stages; `rest`: labels and weights."""
        bounds = micro_batch_bounds(len(x), self._micro_batches)

        def last(number: int, x_part: Array) -> Array:
            start, stop = bounds[number]
            parts = [x_part, *(array[start:stop] for array in rest)]
            return self._last(parts, (stop - start) / len(x))

        inputs = [x[start:stop] for start, stop in bounds]
        train(self._group, inputs, last, next(self._calls) * self._micro_batches)
        if self._take_step is None:
            import tensorflow as tf

            optimizer, variables = self.model.optimizer, self.model.trainable_variables
            self._take_step = tf.function(
                lambda gradients: optimizer.apply(gradients, variables), autograph=False
            )
        self._take_step(self._gradients.take())

    def _last(self, arrays: Sequence[NDArray[Any]], share: float) -> Array:
        """Compute the last stage both ways, and add its gradients; return that of its input.

        `share`: weight of these rows' loss in that of the batch.
        """
        import tensorflow as tf

        key = tuple((array.dtype.str, array.shape[1:]) for array in arrays)
        if key not in self._both_ways:
            # Batches of all sizes take one graph.
            shapes = [tf.TensorSpec((None, *a.shape[1:]), a.dtype) for a in arrays]
            signature = [tf.TensorSpec((), tf.float32), *shapes]
            self._both_ways[key] = tf.function(
                self._forward_and_backward, input_signature=signature, autograph=False
            )
        tensors = [tf.constant(array) for array in arrays]
        dx, *gradients = self._both_ways[key](tf.constant(share, tf.float32), *tensors)
        self._gradients.add(gradients)
        return np.asarray(dx)

    def _forward_and_backward(self, share: Any, x: Any, *rest: Any) -> list[Any]:
        """Return the gradients of input and variables; body of a compiled function."""
        import keras
        import tensorflow as tf

        model = self.model
        with tf.GradientTape() as tape:
            tape.watch(x)
            inputs, y, weight = keras.utils.unpack_x_y_sample_weight(self._data([x, *rest]))
            prediction = model(inputs, training=True)
            loss = model.compute_loss(
                x=inputs, y=y, y_pred=prediction, sample_weight=weight, training=True
            )
            scaled_loss = model.optimizer.scale_loss(loss * share)
        # As Keras' own train_step.
        model._loss_tracker.update_state(loss, sample_weight=tf.shape(x)[0])
        model.compute_metrics(inputs, y, prediction, sample_weight=weight)
        values = [variable.value for variable in model.trainable_variables]
        gradients = tape.gradient(
            scaled_loss, [x, *values], unconnected_gradients=tf.UnconnectedGradients.ZERO
        )
        return [tf.convert_to_tensor(gradient) for gradient in gradients]

    def _build_metrics(self, block: RowBlock) -> None:
        (tensor,) = self.model.inputs
        x, sample = np.zeros((1, 1, *tensor.shape[1:]), np.float32), block.part(slice(1), slice(1))
        super()._build_metrics(RowBlock((x,), sample.y, sample.weight))

    def _test(self, arrays: Sequence[NDArray[Any]]) -> Mapping[str, Any]:
        x, *rest = arrays
        return super()._test([infer(self._group, scaled(x, *self._input_scaling)), *rest])
