"""What speeds up one step on one core, Keras on TensorFlow: ``python -m tests.benchmarks.steps``.

Each variant is a process with one thread, and trains windows of the same rows by the engine of the
workers, with Adam: as users get it, and with one thing changed. Two variants keep Adam's state, or
weights and state, in one flat variable; the second is a loop of its own in place of Keras'
``train_step``. Variants take turns. The figures are microseconds of a step: the median of the
turns by the clock, and the lowest processor time, which other work on the machine changes less.
What cannot be run is a row with the reason.
"""

from __future__ import annotations

import argparse
import math
import os
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from distkeras_grid.errors import TrainingError
from distkeras_grid.rows import RowBlock, aligned_empty
from tests.benchmarks.nets import CLASSES, NETS
from tests.benchmarks.studies.machine import processor_name
from tests.benchmarks.studies.processes import Side
from tests.benchmarks.tables import print_table

WINDOW = 16
BATCHES = (32, 128)
# How long each variant runs in its turn, at least one window [s].
SECONDS = 1.0
ANSWER_SECONDS = 240.0
FEATURES = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_tile")
SCALE = 1 / 255
Window = Callable[[], object]


@dataclass(frozen=True)
class Variant:
    """One way to run a step."""

    title: str  # For the table
    net: str  # Key of `NETS`
    batch: int  # Rows in a batch
    window: int = WINDOW  # Steps in one compiled call
    jit: Any = "auto"  # Whether XLA compiles it
    onednn: bool = True  # TF_ENABLE_ONEDNN_OPTS
    policy: str = "float32"  # Keras' policy of types
    graph_bfloat16: bool = False  # Whether TensorFlow's graph is rewritten to bfloat16, by oneDNN
    channels_first: bool = False  # Whether convolutions take ``(channels, height, width)``
    optimizer: str = "adam"  # "adam", or "flat adam" with one variable for each of its slots
    flat: bool = False  # Whether weights and Adam's state are flat in a loop of its own

    def environment(self) -> dict[str, str]:
        """Return what must be set before the first import."""
        return {
            "KERAS_BACKEND": "tensorflow",
            "TF_ENABLE_ONEDNN_OPTS": str(int(self.onednn)),
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "CUDA_VISIBLE_DEVICES": "-1",
            "OMP_NUM_THREADS": "1",
        }


def variants(net: str, batch: int) -> list[Variant]:
    """Return the variants of one net; the first is what users get."""
    base = Variant("as it is", net, batch)
    xla = NETS[net].jit
    changes: list[tuple[str, dict[str, Any]]] = [
        (f"XLA {'off' if xla else 'on'}", {"jit": not xla}),
        ("oneDNN off", {"onednn": False}),
        ("window 64", {"window": 64}),
        ("window 1", {"window": 1}),
        ("mixed_bfloat16", {"policy": "mixed_bfloat16"}),
        ("bfloat16 in TensorFlow's graph", {"graph_bfloat16": True, "jit": False}),
        ("Adam's state flat", {"optimizer": "flat adam"}),
        ("weights and Adam's state flat, own loop", {"flat": True, "jit": xla}),
    ]
    if net == "cnn":
        changes.append(("channels first", {"channels_first": True}))
    return [base, *(replace(base, title=title, **change) for title, change in changes)]


def flat_adam() -> Any:
    """Return Adam with one variable for each slot, and one update for all weights."""
    import keras
    import tensorflow as tf

    class FlatAdam(keras.optimizers.Adam):
        def build(self, variables: Any) -> None:
            if self.built:
                return
            keras.optimizers.Optimizer.build(self, variables)
            size = sum(math.prod(variable.shape) for variable in variables)
            self.flat_mean = self.add_variable((size,), name="mean")
            self.flat_square = self.add_variable((size,), name="square")

        def _backend_update_step(self, grads: Any, trainable_variables: Any, rate: Any) -> None:
            gradient = tf.concat([tf.reshape(each, [-1]) for each in grads], 0)
            step = tf.cast(self.iterations.value + 1, tf.float32)
            change = adam_change(
                gradient, self.flat_mean.value, self.flat_square.value, step, rate, assign=True
            )
            shapes = [variable.shape for variable in trainable_variables]
            for variable, part in zip(trainable_variables, parted(change, shapes), strict=True):
                variable.value.assign_sub(part)

    return FlatAdam(0.001)


def adam_change(
    gradient: Any, mean: Any, square: Any, step: Any, rate: Any, *, assign: bool
) -> Any:
    """Return what Adam subtracts, with or without the new states, which are assigned if asked."""
    import tensorflow as tf

    new_mean = mean + (gradient - mean) * (1 - 0.9)
    new_square = square + (tf.square(gradient) - square) * (1 - 0.999)
    if assign:
        new_mean, new_square = mean.assign(new_mean), square.assign(new_square)
    scale = rate * tf.sqrt(1 - tf.pow(0.999, step)) / (1 - tf.pow(0.9, step))
    change = scale * new_mean / (tf.sqrt(new_square) + 1e-7)
    return change if assign else (change, new_mean, new_square)


def parted(flat: Any, shapes: Sequence[Any]) -> list[Any]:
    """Return a flat vector as tensors of these shapes."""
    import tensorflow as tf

    parts = tf.split(flat, [math.prod(shape) for shape in shapes])
    return [tf.reshape(part, shape) for part, shape in zip(parts, shapes, strict=True)]


class Steps:
    """Runs the windows of a variant, in a process of its own."""

    def __init__(self, variant: Variant) -> None:
        import keras
        import tensorflow as tf

        tf.config.threading.set_intra_op_parallelism_threads(1)
        tf.config.threading.set_inter_op_parallelism_threads(1)
        keras.config.set_dtype_policy(variant.policy)
        if variant.channels_first:
            keras.config.set_image_data_format("channels_first")
        if variant.graph_bfloat16:
            tf.config.optimizer.set_experimental_options(
                {"auto_mixed_precision_onednn_bfloat16": True}
            )
        self._steps = variant.window
        shape = NETS[variant.net].shape
        if variant.channels_first:
            shape = (shape[-1], *shape[:-1])
        optimizer = flat_adam() if variant.optimizer == "flat adam" else variant.optimizer
        model = NETS[variant.net].net.build(shape, CLASSES, 0, optimizer=optimizer)
        random = np.random.default_rng(0)
        images = aligned_empty((variant.window, variant.batch, *shape), np.uint8)
        images[:] = random.integers(0, 256, images.shape, dtype=np.uint8)
        labels = random.integers(0, CLASSES, images.shape[:2])
        build = flat_window if variant.flat else engine_window
        self._window = build(variant, model, images, labels)
        # The first call compiles, and the second one may still allocate.
        self._window()
        self._window()

    def time(self, seconds: float) -> tuple[float, float]:
        """Return microseconds of a step, by the clock and of the processor."""
        began, used, steps = time.perf_counter(), time.process_time(), 0
        while steps == 0 or time.perf_counter() < began + seconds:
            self._window()
            steps += self._steps
        clock, processor = time.perf_counter() - began, time.process_time() - used
        return 1e6 * clock / steps, 1e6 * processor / steps


def engine_window(variant: Variant, model: Any, images: Any, labels: Any) -> Window:
    """Return a window of the workers' engine, with the exchange's copies of the weights."""
    from distkeras_grid.engine.tensorflow import TensorFlowEngine

    engine = TensorFlowEngine(
        model,
        scaling=((SCALE, 0.0),),
        block_shape=images.shape[:2],
        jit=variant.jit,
    )
    before, after = (aligned_empty(engine.layout.size) for _ in range(2))
    np.copyto(before, engine.weights())
    block = RowBlock((images,), (labels,))

    def window() -> None:
        engine.run(before, [block], after)
        np.copyto(before, after)

    return window


def flat_window(variant: Variant, model: Any, images: Any, labels: Any) -> Window:
    """Return a window whose weights and states of Adam are flat variables of a loop."""
    import keras
    import tensorflow as tf

    shapes = [variable.shape for variable in model.trainable_variables]
    flat = np.concatenate([np.ravel(variable) for variable in model.trainable_variables])
    weights, mean, square = (
        tf.Variable(value) for value in (flat, np.zeros_like(flat), np.zeros_like(flat))
    )
    count = tf.Variable(0.0)

    def loss_of(vector: Any, index: Any, pixels: Any, classes: Any) -> Any:
        scaled = tf.cast(pixels[index], tf.float32) * SCALE
        outputs, _ = model.stateless_call(parted(vector, shapes), [], scaled, training=True)
        return tf.reduce_mean(keras.ops.sparse_categorical_crossentropy(classes[index], outputs))

    def body(index: Any, vector: Any, first: Any, second: Any, done: Any, *data: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(vector)
            loss = loss_of(vector, index, *data)
        gradient = tape.gradient(loss, vector)
        change, first, second = adam_change(
            gradient, first, second, done + 1, tf.constant(0.001), assign=False
        )
        return (index + 1, vector - change, first, second, done + 1)

    @partial(tf.function, autograph=False, jit_compile=variant.jit)
    def run(pixels: Any, classes: Any) -> None:
        _, *found = tf.while_loop(
            lambda index, *_: index < variant.window,
            lambda *state: body(*state, pixels, classes),
            (tf.constant(0), weights.value(), mean.value(), square.value(), count.value()),
            parallel_iterations=1,
        )
        for variable, value in zip((weights, mean, square, count), found, strict=True):
            variable.assign(value)

    return lambda: (run(tf.constant(images), tf.constant(labels)), weights.numpy())


@dataclass
class Row:
    """A variant, and what was measured."""

    variant: Variant
    clock: list[float] = field(default_factory=list)  # Microseconds of a step, by turn
    processor: list[float] = field(default_factory=list)  # Microseconds of a step, by turn
    failure: str = ""  # Why there is nothing


def measure(chosen: Sequence[Variant], seconds: float, repetitions: int) -> list[Row]:
    """Let the variants take turns."""
    rows = [Row(variant) for variant in chosen]
    with ExitStack() as stack:
        sides = {}
        for number, row in enumerate(rows):
            try:
                side = Side(partial(Steps, row.variant), row.variant.environment())
                sides[number] = stack.enter_context(side)
            except TrainingError as error:
                row.failure = _shortened(error)
        for _ in range(repetitions):
            for number, side in list(sides.items()):
                try:
                    side.ask("time", seconds)
                    clock, processor = side.answer(ANSWER_SECONDS)
                except TrainingError as error:
                    rows[number].failure = _shortened(error)
                    del sides[number]
                    continue
                rows[number].clock.append(clock)
                rows[number].processor.append(processor)
    return rows


def _shortened(error: Exception) -> str:
    return " ".join(str(error).split())[:160].replace("|", "/")


def _print_rows(rows: Sequence[Row]) -> None:
    base = rows[0]
    lines = []
    for row in rows:
        if row.failure:
            lines.append((row.variant.title, f"failed: {row.failure}", "", "", "", ""))
            continue
        clock, processor = median(row.clock), min(row.processor)
        lines.append(
            (
                *(row.variant.title, f"{clock:,.0f}"),
                f"{min(row.clock):,.0f} to {max(row.clock):,.0f}",
                "" if base.failure else f"{median(base.clock) / clock:.2f}",
                f"{processor:,.0f}",
                "" if base.failure else f"{min(base.processor) / processor:.2f}",
            )
        )
    print_table(
        ("", "us a step", "range", "times as fast", "processor us, lowest", "times as fast"),
        lines,
    )


def processor_features() -> str:
    """Return what the processor can do of what matters here."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return "features of the processor unknown"
    flags = next((line for line in lines if line.startswith("flags")), "").split()
    return ", ".join(f"{name} {'yes' if name in flags else 'no'}" for name in FEATURES)


def main(words: Sequence[str] = ()) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nets", nargs="+", choices=("mlp", "cnn"), default=("mlp", "cnn"))
    parser.add_argument("--batches", nargs="+", type=int, default=BATCHES)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of a turn (1)")
    parser.add_argument("--repetitions", type=int, default=3)
    options = parser.parse_args(words)
    print(
        f"{processor_name()} ({processor_features()}), {os.cpu_count()} cores, load before the "
        f"start {os.getloadavg()[0]:.2f}"
    )
    for net in options.nets:
        for batch in options.batches:
            rows = measure(variants(net, batch), options.seconds, options.repetitions)
            print(
                f"\n{NETS[net].title}, batch {batch}, one thread, window {WINDOW} where nothing "
                f"else is said, XLA {'on' if NETS[net].jit else 'off'}"
            )
            _print_rows(rows)


if __name__ == "__main__":
    import sys

    main(sys.argv[1:])
