"""A driver of its own: trains with `Towers` while, if asked, a tower is killed.

``python -m tests.faults.towers_job MASTER FOLDER SETTINGS`` with the settings as JSON;
what came out is written to ``FOLDER/result.json``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

from tests.faults.counting import at_epoch, kill
from tests.faults.split_job import master_loss, python_workers

ROWS, BATCH = 128, 8


def network(folder: Path):
    """Towers, the model that joins them, and the loss."""
    import keras

    # Of the 20 epochs of 16 batches, half.
    loss = master_loss(folder, calls=160)
    keras.utils.set_random_seed(2)
    towers = [
        keras.Sequential([keras.Input((12,)), keras.layers.Dense(8, "tanh")], name=name)
        for name in ("left", "right")
    ]
    head = [keras.Input((16,)), keras.layers.Dense(3, activation="softmax")]
    return towers, keras.Sequential(head, name="head"), loss


def run(spark, folder: Path, epochs: int, *, disturbed: bool) -> dict:
    import keras

    from distkeras_grid import Towers
    from distkeras_grid.model_parallel.stacked import stack

    random = np.random.default_rng(4)
    x, y = random.random((ROWS, 12), np.float32), np.arange(ROWS) % 3
    towers, head, loss = network(folder)
    expected = stack(towers, head)
    expected.compile(keras.optimizers.SGD(0.05), loss)
    expected.fit(x, y, batch_size=BATCH, epochs=epochs, shuffle=False, verbose=0)
    table = [(row.tolist(), int(label)) for row, label in zip(x, y, strict=True)]
    data = spark.createDataFrame(table, "x array<float>, label int").coalesce(1)
    towers, head, loss = network(folder)
    trainer = Towers(
        towers,
        head,
        # Without momentum, so that the weights are all there is to go on from.
        keras.optimizers.SGD(0.05),
        loss,
        batch_size=BATCH,
        num_epoch=epochs,
        features_col="x",
        custom_objects={"loss": loss},
        progress=False,
    )
    killed: list[int] = []

    def harm():
        killed.extend(python_workers(folder, spark.sparkContext.applicationId))
        for pid in killed:
            kill(pid)
        (folder / "go").touch()

    if not disturbed:
        (folder / "go").touch()
    trained = trainer.train(
        data, shuffle=False, seed=1, callbacks=[at_epoch(2, harm)] if disturbed else []
    )
    pairs = zip(expected.get_weights(), trained.get_weights(), strict=True)
    return {
        "largest_difference": max(float(np.abs(one - other).max()) for one, other in pairs),
        "samples": trainer.history.samples,
        "killed": len(killed),
        "told": trainer.run["devices"],
        "attempts": len({record.attempt for record in trainer.history.records}),
    }


def main(master: str, folder: str, text: str) -> None:
    from distkeras_grid.spark.session import build_session
    from tests.faults.train_job import DRIVER

    settings = json.loads(text)
    spark = build_session("towers", master=master, settings=DRIVER)
    found = run(spark, Path(folder), settings["epochs"], disturbed=settings["disturbed"])
    (Path(folder) / "result.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
