"""What the engines of all Keras backends have in common: a model, its variables, its state.

An engine of a backend adds how a window, a step and a test are compiled, and how states are
swapped.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from distkeras_grid.engine.base import State
from distkeras_grid.engine.compile_settings import compile_model, has_own_train_step
from distkeras_grid.engine.jit import decide_jit, serves_xla
from distkeras_grid.engine.keras_model import (
    counters,
    initial_weights,
    model_variables,
    seed_generators,
    state_section,
    weight_layout,
)
from distkeras_grid.engine.local_optimizers import install
from distkeras_grid.engine.metric_state import (
    LogSources,
    as_numbers,
    build_metrics,
    metric_results,
    metric_state,
    metric_variables,
)
from distkeras_grid.engine.model_io import input_dtypes, model_tensors, pack_like_model
from distkeras_grid.engine.optimizers import (
    follow_schedules_from,
    has_own_rate,
    rate_of,
)
from distkeras_grid.engine.outcome import left_by
from distkeras_grid.errors import ConfigurationError
from distkeras_grid.records import WindowResult
from distkeras_grid.rows import RowBlock
from distkeras_grid.rules import LocalSteps
from distkeras_grid.weights import StateSection, Vector

# Scale and offset of an input that the model sees as it is.
AS_IT_IS = (1.0, 0.0)


class KerasEngine(ABC):
    """Trains a Keras model, window by window.

    `labels`: ``(scale, offset)`` of the label of each output, None for one without a label. By
    default each has one, as it is.
    `block_shape`: ``(steps, batch)`` of a whole block. The loop over a block is compiled only for
    this shape, because each shape is compiled separately.
    """

    # Whether compiling serves a layer well.
    _serves = staticmethod(serves_xla)

    def __init__(
        self,
        model: Any,
        *,
        scaling: Sequence[tuple[float, float]] = (),
        labels: Sequence[tuple[float, float] | None] | None = None,
        block_shape: tuple[int, int] | None = None,
        jit: bool | Literal["auto"] = "auto",
        local_steps: LocalSteps = LocalSteps.OPTIMIZER,
        momentum: float = 0.0,
    ) -> None:
        import keras

        compile_model(model)
        self.model = model
        self.layout = weight_layout(model)
        self.jit = decide_jit(model, jit, self._serves) and block_shape is not None
        self._inputs = input_dtypes(model, len(scaling))
        self._scaling = scaling or [AS_IT_IS] * len(self._inputs)
        outputs = max(1, len(model_tensors(model, "outputs")))
        self._labels = [AS_IT_IS] * outputs if labels is None else list(labels)
        self._block_shape = block_shape
        self._variables = model_variables(model).all
        self._own_train_step = has_own_train_step(model)
        self._metrics_built = False
        self._sources = LogSources()
        self._install = partial(install, kind=local_steps, momentum=momentum)
        self._steps = self._install(model)
        # PyTorch computes no gradient of a whole number.
        self.schedule_offset = keras.Variable(
            0, dtype="int", trainable=False, name="schedule_offset"
        )
        follow_schedules_from(self._steps.rated, self.schedule_offset)

    def weights(self) -> Vector:
        """Return a copy of the model's weights as a flat vector."""
        return self.layout.flatten([np.asarray(variable) for variable in self._variables])

    def run(self, before: Vector, blocks: Iterable[RowBlock], after: Vector) -> WindowResult:
        """Train one window from the weights `before` and write the new ones into `after`.

        `before, after`: shape ``(layout.size,)``, ``float32``. `LocalSteps` says what the trainable
        part of `after` receives.
        `blocks`: the mini-batches in order. Only one block at a time is in memory.
        """
        counted = _Counted(blocks)
        values = as_numbers(self._trained(before, counted, after))
        self._steps.finish(after, counted.samples)
        sources = {}
        if self._own_train_step:
            sources = self._sources.look(values, metric_results(self.model))
        return WindowResult(
            steps=counted.steps,
            samples=counted.samples,
            loss=values.pop("loss", None),
            metrics=values,
            state=metric_state(self.model),
            sources=sources,
            learning_rate=rate_of(self._steps.rated),
        )

    @abstractmethod
    def _trained(
        self, before: Vector, blocks: Iterable[RowBlock], after: Vector
    ) -> Mapping[str, Any]:
        """Train the blocks, write the flat weights into `after`, and return the metrics."""

    @abstractmethod
    def apply(self, gradient: Vector, weights: Vector) -> None:
        """Take a step from `weights` with a gradient that all workers use; see `Engine`."""

    @property
    def step_section(self) -> StateSection:
        """Layout of `step_state`; see `Engine`."""
        return state_section(self._steps.state())

    def step_state(self) -> list[NDArray[Any]]:
        """Return copies of the state of the optimizer of `apply`; see `Engine`."""
        # Keras tells a scalar as a NumPy number, which is not an array.
        return [np.array(variable.numpy()) for variable in self._steps.state()]

    def load_step_state(self, state: Sequence[NDArray[Any]]) -> None:
        """Continue with another worker's optimizer state; see `Engine`."""
        for variable, value in zip(self._steps.state(), state, strict=True):
            variable.assign(np.array(value))

    def state(self) -> State:
        """Return copies of optimizer state, counters and random generators; see `Engine`."""
        # Keras tells a scalar as a NumPy number, which is not an array.
        return {
            str(n): np.array(variable.numpy())
            for n, variable in enumerate(self._stateful_variables())
        }

    def restore(self, state: State) -> None:
        """Go on from what `state` returned."""
        for number, variable in enumerate(self._stateful_variables()):
            variable.assign(np.array(state[str(number)]))

    @abstractmethod
    def device_state(self) -> list[Any]:
        """Return a copy of the state, as `swap_state` takes it."""

    @abstractmethod
    def swap_state(self, state: Sequence[Any]) -> list[Any]:
        """Replace the state and return the former one, without moving them between devices.

        This is faster than `state` and `restore`, for simulated workers that share an engine.
        """

    def outcome(self) -> State:
        """Return what training has left beside the weights, for `engine.outcome.take_outcomes`.

        Called once, after the last window. Empty if the engine cannot tell it.
        """
        return left_by(self.model, self._steps.rated)

    def initial_weights(self, seed: Sequence[int]) -> Vector:
        """Return newly drawn initial weights as a flat vector; the model is left alone."""
        return initial_weights(self.model, seed)

    def warm_up(self, block: RowBlock) -> float:
        """Compile what windows of such blocks need, and leave the state as it was."""
        state = [(variable, variable.numpy()) for variable in self._state()]
        before, after = self.weights(), np.empty(self.layout.size, np.float32)
        # A shorter block, because windows have shorter batches, too.
        last = block.part(slice(-1, None), slice(1))
        iterations = int(np.asarray(self.model.optimizer.iterations))
        self.run(before, [block, last], after)
        self._steps.check_applied(iterations, self.model)
        if self._steps.state():
            self.apply(after, self.weights())
        clock = time.perf_counter()
        self.run(before, [block], after)
        seconds = time.perf_counter() - clock
        for variable, value in state:
            variable.assign(value)
        return seconds

    def evaluate(self, weights: Vector, blocks: Iterable[RowBlock]) -> dict[str, float]:
        """Return loss and metrics of weights on rows, by Keras' own ``test_step``."""
        self._load(weights)
        logs: Mapping[str, Any] = {}
        for number, block in enumerate(blocks):
            if number == 0:
                self._build_metrics(block)
                self.model.reset_metrics()
            for step in range(block.steps):
                logs = self._test([array[step] for array in block.arrays])
        return as_numbers(logs)

    @abstractmethod
    def _test(self, arrays: Sequence[NDArray[Any]]) -> Mapping[str, Any]:
        """Test a batch; return the metrics of all batches since they were reset."""

    def set_schedule_offset(self, steps: int) -> None:
        """Let schedules of the learning rate go on after `steps` batches; see `Engine`.

        The optimizer's own count stays that of its moments: with moments of zero and an old count,
        Adam's steps would be several times too long.

        `steps`: batches, at least 0.
        """
        self.schedule_offset.assign(steps)

    def set_learning_rate(self, value: float) -> None:
        """Set the optimizer's learning rate from the next window on."""
        optimizer = self._steps.rated
        if not has_own_rate(optimizer):
            raise ConfigurationError(
                "The optimizer's learning rate follows a schedule, which counts the worker's own "
                "steps; give it a number to change it during the run. "
                f"Received: learning_rate={value!r}"
            )
        if hasattr(optimizer, "optimizers"):
            raise ConfigurationError(
                f"{type(optimizer).__name__} has a learning rate for each of its optimizers; it "
                f"cannot be changed during the run. Received: learning_rate={value!r}"
            )
        optimizer.learning_rate = value

    def set_seed(self, seed: Sequence[int]) -> None:
        """Seed the model's random generators (dropout, noise, augmentation).

        `seed`: such as (seed of the run, seat): workers must differ, or their dropout masks agree.
        """
        for number, variable in enumerate(seed_generators(self.model)):
            word = np.random.SeedSequence([*seed, number]).generate_state(1)[0]
            variable.assign(np.array([word & 0x7FFFFFFF, 0]))

    def copy_from(self, model: Any) -> None:
        """Copy the state of another model with the same architecture and ``compile``."""
        steps = self._install(model)
        mine = [*self.model.variables, *self.model.optimizer.variables, *self._steps.state()]
        theirs = [*model.variables, *model.optimizer.variables, *steps.state()]
        for variable, other in zip(mine, theirs, strict=True):
            # A copy, because JAX would share the memory.
            variable.assign(other.numpy())
        self.schedule_offset.assign(0)

    def _stateful_variables(self) -> list[Any]:
        """Return the variables that windows and steps change, except the weights.

        Frozen weights do not change. Generators and counters of layers are not floats.
        """
        return [
            *counters(self.model),
            *self.model.optimizer.variables,
            *self._steps.state(),
            self.schedule_offset,
        ]

    def _state(self) -> list[Any]:
        variables = [*self.model.variables, *self.model.optimizer.variables, *self._steps.state()]
        return [*variables, *metric_variables(self.model)]

    def _build_metrics(self, block: RowBlock) -> None:
        """Create the variables of loss and metrics, which a compiled function may not do."""
        import keras

        if self._metrics_built:
            return
        self._metrics_built = True
        sample = block.part(slice(1), slice(1))
        arrays = [keras.ops.convert_to_tensor(array[0]) for array in sample.arrays]
        build_metrics(self.model, self._data(arrays))

    def _load(self, weights: Vector) -> None:
        """Set the variables, outside of a compiled function."""
        # A copy, because JAX may use aligned memory where it is.
        for variable, value in zip(
            self._variables, self.layout.unflatten(weights.copy()), strict=True
        ):
            variable.assign(value)

    @abstractmethod
    def _parts(self, flat: Any) -> list[Any]:
        """Return the parts of a flat tensor, in the shapes of the variables."""

    @abstractmethod
    def _flat(self, values: Sequence[Any]) -> Any:
        """Return tensors as a flat one."""

    def _flat_weights(self) -> Any:
        """Return the weights that are sent, flat; body of a compiled function."""
        cut = len(self.layout.trainable)
        trainable = self._steps.exported_weights(self._variables[:cut])
        return self._flat([*trainable, *(variable.value for variable in self._variables[cut:])])

    def _step(self, flat: Any, gradient: Any) -> Any:
        """Take a step with a flat gradient, and adopt statistics; body of a compiled function."""
        self._assign(flat)
        parts = self._parts(gradient)
        cut = len(self.layout.trainable)
        self._steps.apply(parts[:cut])
        for variable, value in zip(self._variables[cut:], parts[cut:], strict=True):
            variable.assign(value)
        return self._flat([variable.value for variable in self._variables])

    def _assign(self, flat: Any) -> None:
        """Set the variables from a flat tensor; body of a compiled function."""
        parts = self._parts(flat)
        cut = len(self.layout.trainable)
        values = [*self._steps.loaded(parts[:cut]), *parts[cut:]]
        for variable, value in zip(self._variables, values, strict=True):
            variable.assign(value)

    def _data(self, arrays: Sequence[Any]) -> Any:
        """Return features, labels and, if given, weights of a batch as ``fit`` passes them."""
        import keras

        x, rest = arrays[: len(self._inputs)], iter(arrays[len(self._inputs) :])
        self._steps.weigh(keras.ops.shape(arrays[0])[0])
        y = [None if each is None else _target(next(rest), each) for each in self._labels]
        targets = (
            None if all(each is None for each in y) else pack_like_model(self.model, "output", y)
        )
        return keras.utils.pack_x_y_sample_weight(self._features(x), targets, *rest)

    def _features(self, arrays: Sequence[Any]) -> Any:
        scaled = [_scaled(*each) for each in zip(arrays, self._inputs, self._scaling, strict=True)]
        return pack_like_model(self.model, "input", scaled)


class _Counted:
    """Blocks, and what has been taken of them."""

    def __init__(self, blocks: Iterable[RowBlock]) -> None:
        self._blocks = blocks
        self.steps, self.samples = 0, 0

    def __iter__(self) -> Iterator[RowBlock]:
        for block in self._blocks:
            self.steps, self.samples = self.steps + block.steps, self.samples + block.samples
            yield block


def _scaled(x: Any, dtype: str, scaling: tuple[float, float]) -> Any:
    from keras import ops

    if scaling == AS_IT_IS:
        return ops.cast(x, dtype)
    scale, offset = scaling
    return ops.cast(x, "float32") * scale + offset


def _target(y: Any, scaling: tuple[float, float]) -> Any:
    """Return labels as they are, in their own type, or scaled."""
    return y if scaling == AS_IT_IS else _scaled(y, "float32", scaling)
