"""Model parallelism on this machine: divided convolutions, and towers, beside what else one can do.

On the cores of one machine neither is faster than ``fit`` with all cores; the rows say by how much.
``python -m tests.benchmarks.model_parallel``
"""

from __future__ import annotations

import os
import time

os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np

from tests.benchmarks.studies.machine import processor_name
from tests.benchmarks.studies.split_runs import SplitSetup, measure

SETUPS = (
    SplitSetup((16, 64), 16, (1.0,)),
    SplitSetup((50, 200), 16, (1.0,)),
    SplitSetup((50, 200), 16, (2.0,)),
)
ROWS, BATCH, WIDTH, EPOCHS = 4096, 128, 768, 3
#: Batches between two exchanges. Without an argument a run of so few rows would take windows of 1.
WINDOWS = (1, 16)


def convolutions() -> None:
    """Print measured and predicted times of a batch, divided over two processes."""
    print("divided convolutions, seconds a batch (5x5 kernels, 32x32x3, master and one device)")
    print("kernels  batch  device  one core  all cores  divided  predicted  error")
    for setup in SETUPS:
        found = measure(setup)
        kernels = ":".join(map(str, setup.kernels))
        print(
            f"{kernels:>7}  {setup.batch:5}  1/{setup.slowdowns[0]:<4g}  {found.one_core:8.3f}  "
            f"{found.all_cores:9.3f}  {found.divided:7.3f}  {found.plan.divided:9.3f}  "
            f"{found.error:+5.0%}"
        )


def towers() -> None:
    """Print the time of an epoch, and the bytes, of a wide dense net, with each window."""
    import keras

    from distkeras_grid import AveragingTrainer, Towers, build_session

    def tower(name: str) -> keras.Model:
        dense = keras.layers.Dense
        layers = [keras.Input((784,)), dense(WIDTH, "relu"), dense(WIDTH, "relu"), dense(16)]
        return keras.Sequential(layers, name=name)

    head = keras.Sequential(
        [keras.Input((32,)), keras.layers.Dense(10, activation="softmax")], name="head"
    )
    random = np.random.default_rng(0)
    x, y = random.random((ROWS, 784), np.float32), random.integers(0, 10, ROWS)
    common = {"features_col": "x", "num_epoch": EPOCHS, "progress": False}
    settings = ("sgd", "sparse_categorical_crossentropy")
    spark = build_session("towers", master="local[2,4]")
    data = spark.createDataFrame(
        [(row.tolist(), int(label)) for row, label in zip(x, y, strict=True)],
        "x array<float>, label long",
    )
    data.write.mode("overwrite").parquet("build/benchmark-towers")
    data = spark.read.parquet("build/benchmark-towers")

    def split(window: int | None = None) -> Towers:
        towers = [tower("left"), tower("right")]
        arguments = {**common, "batch_size": BATCH, "communication_window": window}
        return Towers(towers, head, *settings, **arguments)

    whole = split().keras_model
    whole.compile(*settings)
    whole.fit(x, y, batch_size=BATCH, verbose=0)
    clock = time.perf_counter()
    whole.fit(x, y, batch_size=BATCH, epochs=EPOCHS, verbose=0)
    fitted = time.perf_counter() - clock
    print(f"\ntowers: {whole.count_params() / 1e6:.2f} million weights in two towers, {ROWS} rows")
    print(f"fit, all cores               {fitted / EPOCHS:7.2f} s an epoch")
    for window in WINDOWS:
        halves = {**common, "batch_size": BATCH // 2, "communication_window": window}
        averaging = AveragingTrainer(whole, *settings, num_workers=2, **halves)
        for name, trainer in (
            ("AveragingTrainer, 2 workers", averaging),
            ("Towers, 2 workers", split(window)),
        ):
            trainer.train(data, seed=1)
            moved = sum(record.bytes_up + record.bytes_down for record in trainer.history.records)
            seconds, note = trainer.get_training_time() / EPOCHS, trainer.run.get("devices", [""])
            print(
                f"{name:28} {seconds:7.2f} s an epoch  window {window:2}  "
                f"server {moved / 1e6:6.1f} MB  {note[-1]}".rstrip()
            )
    spark.stop()


def main() -> None:
    """Print both tables."""
    print(processor_name())
    convolutions()
    towers()


if __name__ == "__main__":
    main()
