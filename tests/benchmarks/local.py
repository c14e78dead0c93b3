"""Training on this machine without Spark: ``fit``, and a plain window loop.

Each side is a process of its own, because threads and kernels are chosen before TensorFlow's first
operation. It lives as long as its table, so that sides can take turns, and sleeps between them.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tests.benchmarks import fashion, processes
from tests.benchmarks.fitting import Point, compile_ahead, timed_fit
from tests.benchmarks.nets import NETS

# An epoch of the slowest side takes half a minute.
ANSWER_SECONDS = 3600.0


@dataclass(frozen=True)
class Setup:
    """What a side runs."""

    net: str  # Key of `NETS`
    folder: Path  # Folder of the IDX files
    batch: int  # Rows in a batch
    window: int = 0  # Batches in one call of the window loop; 0 for ``fit``
    threads: int | None = None  # Threads of TensorFlow; None for its own choice, all cores
    onednn: bool = True  # TF_ENABLE_ONEDNN_OPTS
    steps_per_execution: int = 1  # Of ``fit``
    backend: str = "tensorflow"  # Keras backend
    # (number, count): this process trains each count-th row, from row number on
    part: tuple[int, int] = (0, 1)
    split: str = "train"  # See `fashion.read`

    def environment(self) -> dict[str, str]:
        """Return what must be set before the first import."""
        threads = {} if self.threads is None else {"OMP_NUM_THREADS": str(self.threads)}
        return {
            "KERAS_BACKEND": self.backend,
            "TF_ENABLE_ONEDNN_OPTS": str(int(self.onednn)),
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "CUDA_VISIBLE_DEVICES": "-1",
            "JAX_PLATFORMS": "cpu",
            **threads,
        }


class Side(processes.Side):
    """The process of one side, as a context manager."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(partial(build, setup), setup.environment())
        self.setup = setup

    def answer(self, seconds: float = ANSWER_SECONDS) -> Any:
        """Wait for what it returns."""
        return super().answer(seconds)

    def epoch(self) -> float:
        """Return the seconds of one epoch."""
        self.ask("epoch")
        return self.answer()


def build(setup: Setup) -> Fit | WindowLoop:
    """Return what runs in the process of a side."""
    return WindowLoop(setup) if setup.window else Fit(setup)


class Fit:
    """``keras.Model.fit`` on float32 arrays in memory."""

    def __init__(self, setup: Setup) -> None:
        _limit_threads(setup)
        self.setup = setup
        self.net = NETS[setup.net]
        rows = fashion.read(setup.folder, setup.split)
        self.images, self.labels = rows.scaled(self.net.shape), rows.labels
        self.model = self._compiled(0)

    def _compiled(self, seed: int) -> Any:
        """Return a model whose step is compiled and whose state is that of the seed."""
        model = self.net.build(seed, self.setup.steps_per_execution)
        compile_ahead(model, self.images, self.labels, self.setup.batch)
        return model

    def steps(self, steps: int) -> float:
        """Return the seconds of some steps."""
        return self._run(self.model, steps * self.setup.batch, 1)[-1][1]

    def epoch(self) -> float:
        """Return the seconds of an epoch."""
        return self._run(self.model, len(self.images), 1)[-1][1]

    def curve(self, seed: int, epochs: int, marks: int) -> list[Point]:
        """Train a new model; return a point for each of `marks` parts of each epoch."""
        return self._run(self._compiled(seed), len(self.images), epochs, marks)

    def _run(self, model: Any, rows: int, epochs: int, marks: int = 1) -> list[Point]:
        images, labels = self.images[:rows], self.labels[:rows]
        batch = self.setup.batch
        return timed_fit(model, images, labels, batch=batch, epochs=epochs, marks=marks)


class WindowLoop:
    """The plainest fast loop: Keras' own ``train_step`` over a window in one ``tf.function``.

    Weights stay in the model and go nowhere. Images are gathered as uint8 and scaled inside, as
    the workers do it.
    """

    def __init__(self, setup: Setup) -> None:
        import tensorflow as tf

        _limit_threads(setup)
        self.setup = setup
        net = NETS[setup.net]
        rows = fashion.read(setup.folder, setup.split)
        number, count = setup.part
        self.images = rows.shaped(net.shape)[number::count]
        self.labels = rows.labels[number::count]
        self.random = np.random.default_rng(number)
        self.model = net.build(0)
        # Creates the variables of metrics and optimizer, which a compiled function may not do.
        self.model.train_on_batch(rows.scaled(net.shape)[: setup.batch], rows.labels[: setup.batch])
        lengths = (setup.window, setup.batch)
        self.function = tf.function(
            self._window,
            input_signature=[
                tf.TensorSpec((*lengths, *net.shape), tf.uint8),
                tf.TensorSpec(lengths, tf.int64),
            ],
            autograph=False,
            jit_compile=net.jit,
        )
        self._train(np.arange(np.prod(lengths)).reshape(lengths))

    def epoch(self) -> float:
        """Return the seconds of an epoch; whole windows are trained, and the time scaled up."""
        size = self.setup.window * self.setup.batch
        count = len(self.labels) // size
        began = time.perf_counter()
        order = self.random.permutation(len(self.labels))[: count * size]
        for window in order.reshape(count, self.setup.window, self.setup.batch):
            self._train(window)
        return (time.perf_counter() - began) * len(self.labels) / (count * size)

    def _train(self, window: np.ndarray) -> float:
        return float(self.function(self.images[window], self.labels[window])["loss"])

    def _window(self, images: Any, labels: Any) -> Any:
        import tensorflow as tf

        def body(step: Any) -> tuple[Any]:
            scaled = tf.cast(images[step], tf.float32) * (1 / 255)
            self.model.train_step((scaled, labels[step]))
            return (step + 1,)

        steps = self.setup.window
        tf.while_loop(lambda step: step < steps, body, (tf.constant(0),), parallel_iterations=1)
        return self.model.get_metrics_result()


def _limit_threads(setup: Setup) -> None:
    if setup.threads is None or setup.backend != "tensorflow":
        return
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(setup.threads)
    tf.config.threading.set_inter_op_parallelism_threads(setup.threads)
