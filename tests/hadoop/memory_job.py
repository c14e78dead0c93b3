"""A job of two trainings: data larger than their container, then a loss that takes too much."""

from __future__ import annotations

import sys
import time

from distkeras_grid import ADAG, Field
from distkeras_grid.errors import ClusterError
from distkeras_grid.spark.session import build_session

SIDE, ROWS = 512, 4000  # 1 GB
HOARD = 1200 << 20


def hungry(labels, predicted):
    """A loss that keeps memory nobody could know of, in a worker only."""
    import keras
    import numpy as np
    from pyspark import TaskContext

    if TaskContext.get() is not None:
        kept = np.ones(HOARD, np.uint8)
        time.sleep(10)
        del kept
    return keras.losses.sparse_categorical_crossentropy(labels, predicted)


def say(line):
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def train(frame, loss, rows, **objects):
    import keras

    layers = [keras.Input((SIDE, SIDE, 1)), keras.layers.AveragePooling2D(SIDE // 4)]
    layers += [keras.layers.Flatten(), keras.layers.Dense(2, activation="softmax")]
    model = keras.Sequential(layers)
    model.compile("sgd", loss)
    field = Field("image", (SIDE, SIDE, 1), dtype="uint8", scale=1 / 255)
    trainer = ADAG(
        model,
        num_workers=1,
        batch_size=4,
        communication_window=2,
        features_col=field,
        progress=False,
        custom_objects=objects,
    )
    trainer.train(frame.limit(rows) if rows < ROWS else frame, seed=1)
    return trainer


def main() -> int:
    spark = build_session("memory")
    image = f"cast(repeat(cast(id % 10 as string), {SIDE * SIDE}) as binary) as image"
    frame = spark.range(ROWS).selectExpr(image, "id % 2 as label")
    trainer = train(frame, "sparse_categorical_crossentropy", ROWS)
    say(f"trained {trainer.history.samples}")
    try:
        train(frame, hungry, 8, hungry=hungry)
    except ClusterError as error:
        say(f"died: {error}")
        return 0
    return 1


if __name__ == "__main__":
    sys.exit(main())
