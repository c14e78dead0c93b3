"""Towers on two workers of this machine, beside averaging and ``fit`` with all cores.

``python -m tests.benchmarks.model_parallel``; the study of convolutions is
``tests.benchmarks.studies.study_convolution_split``.
"""

from __future__ import annotations

import os
import time

os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np

from tests.benchmarks.studies.machine import processor_name

ROWS, BATCH, WIDTH, EPOCHS = 4096, 128, 768, 3
#: Batches between two exchanges. Without an argument a run of so few rows would take windows of 1.
WINDOWS = (1, 16)


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
    """Print the table."""
    print(processor_name())
    towers()


if __name__ == "__main__":
    main()
