"""Training on this machine without Spark: ``fit``, and a plain window loop.

Each side is a process of its own, because threads and kernels are chosen before TensorFlow's first
operation. It lives as long as its table, so that sides can take turns, and sleeps between them.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from distkeras_grid.engine.keras_model import get_flat_weights
from distkeras_grid.weights import Vector
from tests.benchmarks import fashion
from tests.benchmarks.nets import NETS

# A point of a curve: samples trained, seconds of training, the flat weights.
Point = tuple[int, float, Vector]


@dataclass(frozen=True)
class Setup:
    """What a side runs.

    Parameters
    ----------
    net : str
        Key of `NETS`.
    folder : Path
        Of the IDX files.
    batch : int
        Rows in a batch.
    window : int
        Batches in one call of the window loop; 0 for ``fit``.
    threads : int or None
        Threads of TensorFlow; None for its own choice, all cores.
    onednn : bool
        TF_ENABLE_ONEDNN_OPTS.
    steps_per_execution : int
        Of ``fit``.
    backend : str
        Keras backend.
    part : tuple of int
        (number, count): this process trains each count-th row, from row number on.
    """

    net: str
    folder: Path
    batch: int
    window: int = 0
    threads: int | None = None
    onednn: bool = True
    steps_per_execution: int = 1
    backend: str = "tensorflow"
    part: tuple[int, int] = (0, 1)

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


class Side:
    """The process of one side, as a context manager.

    Attributes
    ----------
    setup : Setup
        What it runs.
    start_seconds : float
        From the start of the process until it could train: imports, data, model, compiling.
    """

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.start_seconds = 0.0

    def __enter__(self) -> Self:
        began = time.perf_counter()
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(theirs, self.setup), daemon=True)
        self._process.start()
        theirs.close()
        self._pipe.recv()
        self.start_seconds = time.perf_counter() - began
        return self

    def __exit__(self, *exception: object) -> None:
        self._pipe.close()
        self._process.join()

    def ask(self, method: str, *arguments: Any) -> None:
        """Let the side begin."""
        self._pipe.send((method, arguments))

    def answer(self) -> Any:
        """Wait for what it returns."""
        return self._pipe.recv()

    def epoch(self) -> float:
        """Return the seconds of one epoch."""
        self.ask("epoch")
        return self.answer()


def serve(pipe: Any, setup: Setup) -> None:
    """Build the side, and run what comes through the pipe until it closes."""
    os.environ.update(setup.environment())
    with _silence():
        side = WindowLoop(setup) if setup.window else Fit(setup)
    pipe.send("ready")
    while True:
        try:
            method, arguments = pipe.recv()
        except EOFError:
            return
        pipe.send(getattr(side, method)(*arguments))


class Fit:
    """``keras.Model.fit`` on float32 arrays in memory."""

    def __init__(self, setup: Setup) -> None:
        _limit_threads(setup)
        self.setup = setup
        self.net = NETS[setup.net]
        rows = fashion.read(setup.folder, "train")
        self.images, self.labels = rows.scaled(self.net.shape), rows.labels
        self.model = self._compiled(0)

    def _compiled(self, seed: int) -> Any:
        """Return a model whose step is compiled and whose state is that of the seed."""
        model = self.net.build(seed, self.setup.steps_per_execution)
        model.optimizer.build(model.trainable_variables)
        variables = [*model.variables, *model.optimizer.variables]
        state = [np.array(variable) for variable in variables]
        # Some whole batches and a last one that is not, as in an epoch.
        rows = 20 * self.setup.batch + len(self.images) % self.setup.batch
        model.fit(self.images[:rows], self.labels[:rows], self.setup.batch, verbose=0)
        for variable, value in zip(variables, state, strict=True):
            variable.assign(value)
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
        import keras

        points: list[Point] = []
        batch = self.setup.batch
        steps = -(-rows // batch)
        inner = {steps * mark // marks for mark in range(1, marks)}

        class Marks(keras.callbacks.Callback):
            """Keeps the weights at each mark; the clock stands still meanwhile.

            At a batch's begin, for Keras runs batch-end hooks in another thread where it can, and
            one of ours would keep it from that.
            """

            epoch = 0
            began = 0.0

            def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002
                self.epoch = epoch
                self.began = self.began or time.perf_counter()

            def on_train_batch_begin(self, step: int, logs: Any = None) -> None:  # noqa: ARG002
                if step in inner:
                    self.keep(rows * self.epoch + step * batch)

            def on_epoch_end(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002
                self.keep(rows * (epoch + 1))

            def keep(self, samples: int) -> None:
                now = time.perf_counter()
                points.append((samples, now - self.began, get_flat_weights(model)))
                self.began += time.perf_counter() - now

        model.fit(
            self.images[:rows],
            self.labels[:rows],
            batch_size=batch,
            epochs=epochs,
            verbose=0,
            callbacks=[Marks()],
        )
        return points


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
        rows = fashion.read(setup.folder, "train")
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


@contextmanager
def _silence() -> Iterator[None]:
    """Drop what native code writes to standard error.

    TensorFlow 2.21 announces there that oneDNN is on, whatever its log level.
    """
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def _limit_threads(setup: Setup) -> None:
    if setup.threads is None or setup.backend != "tensorflow":
        return
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(setup.threads)
    tf.config.threading.set_inter_op_parallelism_threads(setup.threads)
