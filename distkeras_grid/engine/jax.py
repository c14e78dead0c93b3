"""The JAX engine: Keras' own stateless ``train_step``, over a block in one compiled call.

On JAX a step is a function of all variables that returns their new values. The engine keeps the
variables in the model between windows. During a window their memory belongs to the compiled calls,
which use it again for the new values.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distkeras_grid.engine.keras_engine import KerasEngine
from distkeras_grid.rows import RowBlock
from distkeras_grid.weights import Vector

logger = logging.getLogger(__name__)

# Threads of each pool of the CPU client of XLA, which reads it with the first operation. Its
# own flags do not change the pools (jaxlib 0.10).
THREADS = "PJRT_NPROC"

# The number of this process, once it is known.
_in_force: list[int] = []


@dataclass(frozen=True)
class _Functions:
    """The compiled parts of a window: its start, a whole block, a batch, its end; and a step."""

    enter: Callable[..., Any]
    block: Callable[..., Any]
    batch: Callable[..., Any]
    leave: Callable[..., Any]
    apply: Callable[..., Any]


class JaxEngine(KerasEngine):
    """Trains a Keras model on the JAX backend, window by window.

    If `jit` says so, a whole block is one compiled call that scans the steps. All other blocks are
    a call for each batch, so that only another batch size, and no other number of steps, compiles
    anything new.
    """

    def __init__(self, model: Any, **options: Any) -> None:
        super().__init__(model, **options)
        sizes = (variable.size for variable in self.layout.variables)
        self._bounds = list(pairwise(accumulate(sizes, initial=0)))
        self._compiled: tuple[int, _Functions] | None = None
        self._compiled_test: Callable[..., Any] | None = None

    def _trained(
        self, before: Vector, blocks: Iterable[RowBlock], after: Vector
    ) -> Mapping[str, Any]:
        import jax

        state: Any = None
        logs: Mapping[str, Any] = {}
        for block in blocks:
            if state is None:
                self._build_metrics(block)
                functions, groups = self._functions(), self._groups()
                # A copy: JAX may use aligned memory where it is, and the caller writes there again.
                state = functions.enter(_values(groups), jax.numpy.array(before))
            if self.jit and block.shape == self._block_shape:
                logs, state = functions.block(state, block.arrays)
            else:
                for step in range(block.steps):
                    logs, state = functions.batch(state, [array[step] for array in block.arrays])
        flat, results = functions.leave(state)
        _assign(groups, state)
        np.copyto(after, np.asarray(flat))
        return logs if self._own_train_step else results

    def apply(self, gradient: Vector, weights: Vector) -> None:
        """Take a step from `weights` with a gradient that all workers use; see `Engine`."""
        variables = ([*self._variables, *self._steps.state()],)
        step = self._functions().apply
        after, state = step(_values(variables), weights, gradient)
        _assign(variables, state)
        np.copyto(weights, np.asarray(after))

    def device_state(self) -> list[Any]:
        """Return a copy of the state, as `swap_state` takes it."""
        return _copied([variable.value for variable in self._stateful_variables()])

    def swap_state(self, state: Sequence[Any]) -> list[Any]:
        """Put a state in and return the one that was there; see `KerasEngine`."""
        variables = self._stateful_variables()
        before = [variable.value for variable in variables]
        _assign((variables,), (_copied(state),))
        return before

    def _test(self, arrays: Sequence[NDArray[Any]]) -> Mapping[str, Any]:
        if self._compiled_test is None:
            self._compiled_test = self._jitted(
                lambda state, arrays: self.model.test_step(state, self._data(arrays))
            )
        trainable, others, _, metrics = self._groups()
        groups = (trainable, others, metrics)
        logs, state = self._compiled_test(_values(groups), arrays)
        _assign(groups, state)
        numbers: Mapping[str, Any] = logs
        return numbers

    def copy_from(self, model: Any) -> None:
        """Copy the state of another model with the same architecture and ``compile``."""
        super().copy_from(model)
        # A window that failed has given their memory away.
        self.model.reset_metrics()

    def _functions(self) -> _Functions:
        # The schedules' offset is a constant of what is compiled, because Keras' own step hands on
        # only the variables that it knows. It changes with another attempt.
        offset = int(self.schedule_offset.numpy())
        if self._compiled is None or self._compiled[0] != offset:
            functions = _Functions(
                enter=self._jitted(self._entered, donated=(0,)),
                block=self._jitted(self._scanned, donated=(0,)),
                batch=self._jitted(self._stepped, donated=(0,)),
                leave=self._jitted(self._left),
                apply=self._jitted(self._applied),
            )
            self._compiled = (offset, functions)
        return self._compiled[1]

    def _groups(self) -> tuple[list[Any], ...]:
        """Return the variables as ``train_step`` takes their values."""
        model = self.model
        return (
            model.trainable_variables,
            model.non_trainable_variables,
            model.optimizer.variables,
            model.metrics_variables,
        )

    def _jitted(self, function: Callable[..., Any], donated: Sequence[int] = ()) -> Any:
        import jax

        if self.model.run_eagerly:
            return function
        return jax.jit(function, donate_argnums=tuple(donated))

    def _entered(self, state: Any, flat: Any) -> Any:
        """Return the variables' values at the start of a window; body of a compiled function."""

        def begin() -> None:
            self.model.reset_metrics()
            self._assign(flat)

        return _stateless(self._groups(), state, begin)[1]

    def _stepped(self, state: Any, arrays: Sequence[Any]) -> tuple[Mapping[str, Any], Any]:
        """Train a batch; body of a compiled function."""
        logs, state = self.model.train_step(state, self._data(arrays))
        # Keras' own train_step stores its results in the metrics.
        return (logs if self._own_train_step else {}), tuple(list(values) for values in state)

    def _scanned(self, state: Any, arrays: Sequence[Any]) -> tuple[Mapping[str, Any], Any]:
        """Train a block; body of a compiled function."""
        import jax

        def step(state: Any, batch: Sequence[Any]) -> tuple[Any, Mapping[str, Any]]:
            logs, state = self._stepped(state, batch)
            return state, logs

        state, logs = jax.lax.scan(step, state, tuple(arrays))
        return jax.tree.map(lambda values: values[-1], logs), state

    def _left(self, state: Any) -> tuple[Any, Mapping[str, Any]]:
        """Return the flat weights and the metrics; body of a compiled function."""

        def leave() -> tuple[Any, Mapping[str, Any]]:
            own = self._own_train_step
            return self._flat_weights(), {} if own else self.model.get_metrics_result()

        outcome: tuple[Any, Mapping[str, Any]] = _stateless(self._groups(), state, leave)[0]
        return outcome

    def _applied(self, state: Any, flat: Any, gradient: Any) -> Any:
        """Take a step with a flat gradient; body of a compiled function."""
        groups = ([*self._variables, *self._steps.state()],)
        return _stateless(groups, state, lambda: self._step(flat, gradient))

    def _parts(self, flat: Any) -> list[Any]:
        return [
            flat[start:stop].reshape(variable.shape)
            for variable, (start, stop) in zip(self.layout.variables, self._bounds, strict=True)
        ]

    def _flat(self, values: Sequence[Any]) -> Any:
        import jax

        return jax.numpy.concatenate([value.ravel() for value in values])


def _values(groups: Sequence[Sequence[Any]]) -> tuple[list[Any], ...]:
    return tuple([variable.value for variable in group] for group in groups)


def _assign(groups: Sequence[Sequence[Any]], state: Sequence[Sequence[Any]]) -> None:
    for group, values in zip(groups, state, strict=True):
        for variable, value in zip(group, values, strict=True):
            variable.assign(value)


def _stateless(
    groups: Sequence[Sequence[Any]], state: Sequence[Sequence[Any]], act: Callable[[], Any]
) -> tuple[Any, tuple[list[Any], ...]]:
    """Act with variables at some values; return the result, and the values that came of it."""
    import keras

    together = zip(chain(*groups), chain(*state), strict=True)
    with keras.StatelessScope(state_mapping=list(together)) as scope:
        result = act()
    return result, tuple([scope.get_current_value(v) for v in group] for group in groups)


def _copied(values: Sequence[Any]) -> list[Any]:
    """Return copies, because windows give the memory of the variables away."""
    import jax

    return [jax.numpy.array(value) for value in values]


def prepare_process(threads: int) -> int:
    """Limit JAX to some threads, before its first operation."""
    import jax

    if not _in_force:
        try:
            # One device has all threads. JAX refuses the number if it runs already.
            jax.config.update("jax_num_cpu_devices", 1)
        except RuntimeError:
            _in_force.append(int(os.environ.get(THREADS, "0")))
        else:
            os.environ[THREADS] = str(threads)
            _in_force.append(threads)
    (in_force,) = _in_force
    if in_force != threads:
        logger.warning(
            "JAX already runs in this process with %s threads, %s were asked for; start a fresh "
            "Python process (spark.python.worker.reuse=false) to change it",
            in_force or "all cores as",
            threads,
        )
    return in_force


def count_gpus() -> int:
    """Return how many GPUs JAX sees."""
    import jax

    return sum(device.platform == "gpu" for device in jax.devices())
