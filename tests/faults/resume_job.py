"""A driver of its own that trains with checkpoints, and may be killed at any moment.

``python -m tests.faults.resume_job FOLDER`` trains a model with Adam, dropout and batch
normalization on one worker. With ``--anew`` it writes no checkpoints, with ``--rarely`` only those
of its end. It writes each epoch to ``FOLDER/epoch``, and the weights of a run that has ended to
``FOLDER/weights.npy``.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

ROWS, EPOCHS = 600, 30


def net():
    import keras

    layers = [
        keras.Input((4,)),
        keras.layers.Dense(16, "tanh"),
        keras.layers.BatchNormalization(),
        keras.layers.Dropout(0.3, seed=4),
        keras.layers.Dense(3, "softmax"),
    ]
    model = keras.Sequential(layers)
    model.compile("adam", "sparse_categorical_crossentropy")
    return model


def telling(folder: Path):
    import keras

    class Telling(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):  # noqa: ARG002
            (folder / "epoch").write_text(str(epoch))

    return Telling()


def main(text: str, mode: str = "") -> None:
    import keras

    from distkeras_grid import SingleTrainer
    from distkeras_grid.spark.session import build_session

    folder = Path(text)
    spark = build_session("resume", master="local[2,4]")
    saving = {
        "checkpoint_dir": str(folder / "checkpoints"),
        "checkpoint_every": 3600 if mode == "--rarely" else 0.2,
        "resume": "auto",
    }
    # Another process draws other weights and seeds; the first one decides.
    if not (folder / "checkpoints").exists():
        keras.utils.set_random_seed(3)
    terms = {"batch_size": 4, "num_epoch": EPOCHS, "communication_window": 2}
    trainer = SingleTrainer(net(), **terms, **({} if mode == "--anew" else saving))
    columns = "array(sin(id), cos(id), sin(3 * id), id / 600) as features", "id % 3 as label"
    data = spark.range(ROWS, numPartitions=3).selectExpr(*columns)
    model = trainer.train(data, seed=1, callbacks=[telling(folder)])
    assert trainer.history.samples == ROWS * EPOCHS
    weights = np.concatenate([each.ravel() for each in model.get_weights()])
    np.save(folder / "weights.npy", weights)


if __name__ == "__main__":
    main(*sys.argv[1:])
