"""The TensorFlow engine: Keras' own ``train_step``, looped over a block in one compiled call.

``fit`` pays for its input pipeline, for dispatch and for Python at each step. One ``tf.function``
that loops over a window pays once a window, and takes and gives the flat weights on the way.
"""

from __future__ import annotations

import importlib
import logging
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distkeras_grid.engine.keras_engine import KerasEngine
from distkeras_grid.rows import ALIGNMENT, RowBlock
from distkeras_grid.weights import Vector

logger = logging.getLogger(__name__)

# A line of TensorFlow's log that tells nothing but a fact.
NOTICE = re.compile(rb"I\d{4} |WARNING: All log messages before absl::InitializeLog")

# Of each array of a block: its type, and its shape without steps and batch.
Signature = tuple[tuple[str, tuple[int, ...]], ...]


@dataclass(frozen=True)
class _WindowFunctions:
    """One window as a compiled call: for blocks of any length, and for whole blocks."""

    any: Callable[..., Any]
    whole: Callable[..., Any]


class TensorFlowEngine(KerasEngine):
    """Trains a Keras model on the TensorFlow backend, window by window.

    XLA compiles whole blocks if `jit` says so. All other blocks use TensorFlow's own kernels.
    """

    def __init__(self, model: Any, **options: Any) -> None:
        super().__init__(model, **options)
        self._functions: dict[Signature, _WindowFunctions] = {}
        self._apply: Callable[..., Any] | None = None
        self._swap: Callable[..., Any] | None = None
        self._compiled_test: Callable[..., Any] | None = None

    def _trained(
        self, before: Vector, blocks: Iterable[RowBlock], after: Vector
    ) -> Mapping[str, Any]:
        """Train the blocks. `before` is not copied if `aligned_empty` made it."""
        import tensorflow as tf

        flat = to_tensor(before)
        logs: Mapping[str, Any] = {}
        for number, block in enumerate(blocks):
            function = self._function(block)
            flat, logs = function(flat, tf.constant(number == 0), *map(to_tensor, block.arrays))
        # The buffer protocol avoids the copy that Tensor.numpy() makes.
        np.copyto(after, np.asarray(memoryview(flat)))
        return logs

    def apply(self, gradient: Vector, weights: Vector) -> None:
        """Take a step from `weights` with a gradient that all workers use; see `Engine`."""
        import tensorflow as tf

        if self._apply is None:
            flat = tf.TensorSpec((self.layout.size,), tf.float32)
            self._apply = tf.function(self._step, input_signature=[flat, flat], autograph=False)
        after = self._apply(to_tensor(weights), to_tensor(gradient))
        np.copyto(weights, np.asarray(memoryview(after)))

    def device_state(self) -> list[Any]:
        """Return a copy of the state, as `swap_state` takes it."""
        import tensorflow as tf

        return [tf.identity(variable.value) for variable in self._stateful_variables()]

    def swap_state(self, state: Sequence[Any]) -> list[Any]:
        """Put a state in and return the one that was there; see `KerasEngine`."""
        import tensorflow as tf

        if self._swap is None:
            # One call, because separate assignments would take longer than a window.
            self._swap = tf.function(self._swapped, autograph=False)
        before: list[Any] = self._swap(state)
        return before

    def _swapped(self, state: Sequence[Any]) -> list[Any]:
        before = self.device_state()
        for variable, value in zip(self._stateful_variables(), state, strict=True):
            variable.value.assign(value)
        return before

    def _test(self, arrays: Sequence[NDArray[Any]]) -> Mapping[str, Any]:
        import tensorflow as tf

        test: Callable[..., Any] = self._tested
        if not self.model.run_eagerly:
            if self._compiled_test is None:
                # Batches of other sizes take the same graph.
                self._compiled_test = tf.function(
                    self._tested, autograph=False, reduce_retracing=True
                )
            test = self._compiled_test
        logs: Mapping[str, Any] = test(*(tf.constant(array) for array in arrays))
        return logs

    def _function(self, block: RowBlock) -> Callable[..., Any]:
        signature = tuple((array.dtype.name, array.shape[2:]) for array in block.arrays)
        if signature not in self._functions:
            self._build_metrics(block)
            self._functions[signature] = self._compiled(signature)
        functions = self._functions[signature]
        whole = block.shape == self._block_shape
        return functions.whole if whole else functions.any

    def _compiled(self, signature: Signature) -> _WindowFunctions:
        import tensorflow as tf

        if self.model.run_eagerly:
            return _WindowFunctions(self._window, self._window)

        def compiled(lengths: tuple[int | None, int | None], jit: bool) -> Callable[..., Any]:
            arrays = [tf.TensorSpec((*lengths, *shape), dtype) for dtype, shape in signature]
            flat = tf.TensorSpec((self.layout.size,), tf.float32)
            function: Callable[..., Any] = tf.function(
                self._window,
                input_signature=[flat, tf.TensorSpec((), tf.bool), *arrays],
                autograph=False,
                jit_compile=jit,
            )
            return function

        relaxed = compiled((None, None), jit=False)
        if not self.jit or self._block_shape is None:
            return _WindowFunctions(relaxed, relaxed)
        return _WindowFunctions(relaxed, compiled(self._block_shape, jit=True))

    def _window(self, flat: Any, first: Any, *arrays: Any) -> tuple[Any, dict[str, Any]]:
        """Assign the flat weights, train the block, return flat weights and metrics.

        The body of the compiled function; all arguments are tensors.
        """
        import tensorflow as tf

        self._assign(flat)
        self._begin(first)
        steps = tf.shape(arrays[0])[0]

        def step(index: Any) -> dict[str, Any]:
            data = self._data([array[index] for array in arrays])
            logs: dict[str, Any] = self.model.train_step(data)
            return logs

        def body(index: Any) -> tuple[Any]:
            step(index)
            return (index + 1,)

        # Keras' own train_step stores its results in the metrics. What another one returns is known
        # only from a call, so the last step stays outside of the loop.
        looped = steps - 1 if self._own_train_step else steps
        tf.while_loop(lambda index: index < looped, body, (tf.constant(0),), parallel_iterations=1)
        logs = step(looped) if self._own_train_step else self.model.get_metrics_result()
        return self._flat_weights(), logs

    def _tested(self, *arrays: Any) -> dict[str, Any]:
        """Test a batch; body of a compiled function."""
        logs: dict[str, Any] = self.model.test_step(self._data(arrays))
        return logs

    def _parts(self, flat: Any) -> list[Any]:
        import tensorflow as tf

        sizes = [variable.size for variable in self.layout.variables]
        parts = zip(self.layout.variables, tf.split(flat, sizes), strict=True)
        return [tf.reshape(part, variable.shape) for variable, part in parts]

    def _flat(self, values: Sequence[Any]) -> Any:
        import tensorflow as tf

        return tf.concat([tf.reshape(value, [-1]) for value in values], 0)

    def _begin(self, first: Any) -> None:
        """Reset what belongs to the previous window, if this is the first block."""
        import tensorflow as tf

        def reset() -> Any:
            self.model.reset_metrics()
            return tf.constant(True)

        tf.cond(first, reset, lambda: tf.constant(False))


def to_tensor(array: NDArray[Any]) -> Any:
    """Return a tensor, which shares the array's memory if that is aligned.

    A tensor on unaligned memory aborts the process, so such an array is copied.
    """
    import tensorflow as tf

    flags = array.flags
    if array.ctypes.data % ALIGNMENT or not (flags.c_contiguous and flags.writeable):
        return tf.constant(array)
    return tf.experimental.dlpack.from_dlpack(array.__dlpack__())


def prepare_process(threads: int) -> int:
    """Limit TensorFlow to some threads, before its first operation."""
    if "tensorflow" not in sys.modules:
        os.environ["OMP_NUM_THREADS"] = str(threads)
        # Only errors among TensorFlow's start-up messages belong in an executor's log.
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
        # By default TensorFlow uses the oneDNN kernels only with AVX-512. With AVX2 they make
        # convolutions 1.5 times faster (measured on Zen 3).
        os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
        with _without_notices():
            importlib.import_module("tensorflow")
    import tensorflow as tf

    threading = tf.config.threading
    try:
        threading.set_intra_op_parallelism_threads(threads)
        threading.set_inter_op_parallelism_threads(threads)
    except RuntimeError:
        in_force: int = threading.get_intra_op_parallelism_threads()
        logger.warning(
            "TensorFlow already runs in this process with %s threads, %s were asked for; start a "
            "fresh Python process (spark.python.worker.reuse=false) to change it",
            in_force or "all cores as",
            threads,
        )
        return in_force
    return threads


@contextmanager
def _without_notices() -> Iterator[None]:
    """Hold back notices on standard error, and pass on everything else.

    TensorFlow says at import that it uses oneDNN, before it has read TF_CPP_MIN_LOG_LEVEL.
    """
    if os.environ["TF_CPP_MIN_LOG_LEVEL"] == "0":
        yield
        return
    sys.stderr.flush()
    stderr = os.dup(2)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(stderr, 2)
            os.close(stderr)
            file.seek(0)
            lines = [line for line in file if not NOTICE.match(line)]
            os.write(2, b"".join(lines))


def count_gpus() -> int:
    """Return how many GPUs TensorFlow sees."""
    import tensorflow as tf

    return len(tf.config.list_physical_devices("GPU"))
