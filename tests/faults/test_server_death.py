"""The server dies in runs of every kind that has a part of its own beside server and workers.

With checkpoints the run begins again, and the result is that of an undisturbed run. On local sets a
worker dies, too.
"""

from __future__ import annotations

import signal
import threading
import time
from contextlib import contextmanager

import numpy as np
import pytest

from distkeras_grid import Field, LocalSets
from distkeras_grid.spark.columns import resolve_columns
from distkeras_grid.stores.dataset_index import catalogue
from distkeras_grid.trainers.local_data import LocalData
from tests.faults.counting import (
    at_epoch,
    attempts,
    counting_data,
    counting_model,
    kill,
    negative_sum,
    server_pid,
    worker_pid,
)

pytestmark = [pytest.mark.faults, pytest.mark.spark, pytest.mark.tensorflow, pytest.mark.full]

ROWS = 240
#: Seconds between two checkpoints: some before the death, or none.
EVERY = pytest.mark.parametrize("every", [0.2, 3600], ids=["after a checkpoint", "before one"])
WAIT_SECONDS = 120.0


@contextmanager
def killed_server(trainer, samples, by=signal.SIGKILL):
    """Kill the server once, when the run has folded so many samples, or stop it."""
    killed, ended = [], threading.Event()

    def watch():
        deadline = time.monotonic() + WAIT_SECONDS
        while not killed and not ended.wait(0.01) and time.monotonic() < deadline:
            if trainer.history is not None and trainer.history.samples >= samples:
                killed.append(server_pid())
                kill(killed[0], by)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
    assert killed, "the run ended before"
    (told,) = trainer.run["resumed"]
    assert told["restarted"] == "server"


def saving(folder, every):
    return {"checkpoint_dir": str(folder / "checkpoints"), "checkpoint_every": every}


def counting(loss, every, folder, **terms):
    """Return a trainer of two workers that counts how often each row is trained."""
    from distkeras_grid import DOWNPOUR

    return DOWNPOUR(
        counting_model(ROWS, loss),
        num_workers=2,
        batch_size=4,
        communication_window=3,
        custom_objects={"loss": loss},
        progress=False,
        **terms,
        **saving(folder, every),
    )


@pytest.mark.promise(
    "server: hangs for good, with checkpoints",
    "After two minutes the run begins again from its newest checkpoint; exact.",
)
def test_a_run_whose_server_does_not_answer_begins_again(spark, tmp_path):
    noted = tmp_path / "noted"
    noted.mkdir()
    trainer = counting(negative_sum(noted), 0.2, tmp_path, num_epoch=60, features_col="x")
    rows = counting_data(spark, ROWS)
    with killed_server(trainer, 20 * ROWS, by=signal.SIGSTOP):
        model = trainer.train(rows, seed=1)
    assert trainer.history.samples == 60 * ROWS
    np.testing.assert_array_equal(model.get_weights()[0][:, 0], np.full(ROWS, 60))
    assert [len(attempts(noted, seat)) for seat in (0, 1)] == [2, 2]


class RunOnLocalSets:
    """A run whose weights count how often each row is drawn, and what they have to be."""

    iterations = 20

    def __init__(self, spark, folder, every):
        path = str(folder / "rows")
        counting_data(spark, ROWS).write.parquet(path)
        self.field, self.noted = Field("x", (1,), "float32"), folder / "noted"
        self.noted.mkdir()
        self.sets = LocalSets(path, iterations=self.iterations, local_train=60, split=None)
        terms = {"features_col": self.field}
        self.trainer = counting(negative_sum(self.noted), every, folder, **terms)
        frame = spark.read.parquet(path)
        self.found = catalogue(frame, resolve_columns(frame, self.field, "label"), path)

    def check(self, model):
        """Each set has counted once, and was told once."""
        drawing = LocalData(self.sets, self.found).plan(1, 2).drawing
        each = [(t, j) for t in range(self.iterations) for j in range(2)]
        drawn = np.concatenate([drawing.train(*one) for one in each])
        # Tiles are numbered in the order of the files.
        reader, values = self.found.store.open(0), np.empty(ROWS, int)
        for places, features in reader.read(np.arange(ROWS)):
            values[places] = features[:, 0].astype(int)
        expected = np.bincount(values[drawn], minlength=ROWS)
        np.testing.assert_array_equal(model.get_weights()[0][:, 0], expected)
        told = sorted((r.iteration, r.worker) for r in self.trainer.history.local_sets)
        assert told == [(t + 1, j) for t, j in each]


@EVERY
@pytest.mark.promise(
    "server: killed, on local sets, with checkpoints",
    "The run begins again; the sets are drawn again; exact, and each set is told once.",
)
def test_local_sets_are_drawn_as_often_as_without(spark, tmp_path, every):
    run = RunOnLocalSets(spark, tmp_path, every)
    with killed_server(run.trainer, 60 * run.iterations):
        model = run.trainer.train(run.sets, seed=1)
    run.check(model)
    assert [len(attempts(run.noted, seat)) for seat in (0, 1)] == [2, 2]


@pytest.mark.promise(
    "worker: killed, on local sets",
    "Its next attempt draws the same sets; exact.",
)
def test_a_worker_that_is_killed_draws_the_same_sets_again(spark, tmp_path):
    run = RunOnLocalSets(spark, tmp_path, every=3600)
    killer = at_epoch(3, lambda: kill(worker_pid(run.noted, seat=0)))
    run.check(run.trainer.train(run.sets, seed=1, callbacks=[killer]))
    assert len(attempts(run.noted, 0)) == 2


def net():
    import keras

    keras.utils.set_random_seed(3)
    layers = [
        keras.Input((4,)),
        keras.layers.Dense(8, "tanh"),
        keras.layers.BatchNormalization(),
        keras.layers.Dropout(0.2, seed=5),
        keras.layers.Dense(3, "softmax"),
    ]
    model = keras.Sequential(layers)
    model.compile("adam", "sparse_categorical_crossentropy")
    return model


@pytest.fixture(scope="module")
def numbers(spark, tmp_path_factory):
    """Four features a row, in one file, so that every run has the same rows in the same order."""
    path = str(tmp_path_factory.mktemp("numbers") / "rows")
    columns = "array(sin(id), cos(id), sin(3 * id), id / 240) as features", "id % 3 as label"
    spark.range(ROWS, numPartitions=1).selectExpr(*columns).write.parquet(path)
    return spark.read.parquet(path)


def weights_of(model):
    return np.concatenate([each.ravel() for each in model.get_weights()])


@EVERY
@pytest.mark.promise(
    "server: killed, with `EnsembleTrainer` and checkpoints",
    "The run begins again; each member is that of an undisturbed run, bit for bit.",
)
def test_each_member_of_an_ensemble_is_that_of_an_undisturbed_run(numbers, tmp_path, every):
    from distkeras_grid import EnsembleTrainer

    def trainer_of(**more):
        terms = {"num_workers": 2, "batch_size": 8, "num_epoch": 40, "communication_window": 3}
        return EnsembleTrainer(net(), progress=False, **terms, **more)

    whole = trainer_of()
    whole.train(numbers, seed=1)
    trainer = trainer_of(**saving(tmp_path, every))
    with killed_server(trainer, 40 * ROWS):
        trainer.train(numbers, seed=1)
    assert trainer.history.samples == whole.history.samples == 2 * 40 * ROWS
    for one, other in zip(trainer.models, whole.models, strict=True):
        np.testing.assert_array_equal(weights_of(one), weights_of(other))


@EVERY
@pytest.mark.promise(
    "server: killed, with `ConvolutionSplit` and checkpoints",
    "The run begins again; the weights are those of `fit` up to rounding.",
)
def test_a_divided_model_is_that_of_an_undisturbed_run_up_to_rounding(spark, tmp_path, every):
    import keras

    from distkeras_grid import ConvolutionSplit

    epochs = 30
    random = np.random.default_rng(4)
    x, y = random.random((96, 8, 8, 2), np.float32), np.arange(96) % 3

    def network():
        keras.utils.set_random_seed(2)
        layers = [
            keras.Input((8, 8, 2)),
            keras.layers.Conv2D(6, 3, activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dense(3, activation="softmax"),
        ]
        model = keras.Sequential(layers)
        # With a larger rate, rounding alone leads to other weights.
        model.compile(keras.optimizers.SGD(0.02, momentum=0.9), "sparse_categorical_crossentropy")
        return model

    expected = network()
    expected.fit(x, y, batch_size=8, epochs=epochs, shuffle=False, verbose=0)
    table = [(row.ravel().tolist(), int(label)) for row, label in zip(x, y, strict=True)]
    data = spark.createDataFrame(table, "x array<float>, label int").coalesce(1)
    trainer = ConvolutionSplit(
        network(),
        num_workers=2,
        layers="all",
        batch_size=8,
        num_epoch=epochs,
        communication_window=4,
        features_col=Field("x", (8, 8, 2)),
        progress=False,
        **saving(tmp_path, every),
    )
    with killed_server(trainer, 96 * epochs // 2):
        model = trainer.train(data, shuffle=False, seed=1)
    assert trainer.history.samples == 96 * epochs
    np.testing.assert_allclose(weights_of(model), weights_of(expected), atol=1e-3)


@EVERY
@pytest.mark.promise(
    "server: killed, with `Towers` and checkpoints",
    "The run begins again; the weights are those of an undisturbed run, bit for bit.",
)
def test_towers_are_those_of_an_undisturbed_run(numbers, tmp_path, every):
    import keras

    from distkeras_grid import Towers

    epochs = 40

    def towers_of(**more):
        keras.utils.set_random_seed(3)
        towers = [
            keras.Sequential(
                [
                    keras.Input((4,)),
                    keras.layers.Dense(6 + number, activation="relu"),
                    keras.layers.Dropout(0.2, seed=number),
                    keras.layers.Dense(4),
                ],
                name=name,
            )
            for number, name in enumerate(("left", "right"))
        ]
        head = keras.Sequential(
            [keras.Input((8,)), keras.layers.Dense(3, activation="softmax")], name="head"
        )
        settings = {"worker_optimizer": "adam", "loss": "sparse_categorical_crossentropy"}
        terms = {"batch_size": 8, "num_epoch": epochs, "communication_window": 3}
        return Towers(towers, head, progress=False, **settings, **terms, **more)

    whole = towers_of()
    expected = weights_of(whole.train(numbers, seed=1))
    trainer = towers_of(**saving(tmp_path, every))
    with killed_server(trainer, ROWS * epochs // 2):
        model = trainer.train(numbers, seed=1)
    assert trainer.history.samples == ROWS * epochs
    np.testing.assert_array_equal(weights_of(model), expected)
