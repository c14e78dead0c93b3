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
from tests.faults import divided_job
from tests.faults.counting import (
    at_epoch,
    attempts,
    counting_data,
    counting_trainer,
    kill,
    server_pid,
    worker_pid,
)
from tests.faults.resume_job import net

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
    assert told["repeated"] >= 0


def saving(folder, every):
    return {"checkpoint_dir": str(folder / "checkpoints"), "checkpoint_every": every}


@pytest.mark.parametrize("by", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.promise(
    "server: killed, with checkpoints",
    "The run begins again from its newest checkpoint, with new tasks; exact.",
)
@pytest.mark.promise(
    "server: hangs for good, with checkpoints",
    "After two minutes the run begins again from its newest checkpoint; exact.",
)
def test_a_run_whose_server_does_not_answer_begins_again(spark, tmp_path, by):
    trainer = counting_trainer(
        "DOWNPOUR", tmp_path, rows=ROWS, num_epoch=60, **saving(tmp_path, 0.2)
    )
    with killed_server(trainer, 20 * ROWS, by):
        model = trainer.train(counting_data(spark, ROWS), seed=1)
    assert trainer.history.samples == 60 * ROWS
    assert trainer.history.epoch == list(range(60))
    np.testing.assert_array_equal(model.get_weights()[0][:, 0], np.full(ROWS, 60))
    assert [len(attempts(tmp_path, seat)) for seat in (0, 1)] == [2, 2]
    windows = [(r.worker, r.epoch, r.window) for r in trainer.history.records]
    assert len(windows) == len(set(windows))


class RunOnLocalSets:
    """A run whose weights count how often each row is drawn, and what they have to be."""

    iterations = 20

    def __init__(self, spark, folder, every):
        path = str(folder / "rows")
        counting_data(spark, ROWS).write.parquet(path)
        field = Field("x", (1,), "float32")
        self.sets = LocalSets(path, iterations=self.iterations, local_train=60, split=None)
        terms = {"rows": ROWS, "features_col": field, "num_epoch": 1, **saving(folder, every)}
        self.trainer = counting_trainer("DOWNPOUR", folder, **terms)
        frame = spark.read.parquet(path)
        self.found = catalogue(frame, resolve_columns(frame, field, "label"), path)

    def check(self, model):
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
    assert [len(attempts(tmp_path, seat)) for seat in (0, 1)] == [2, 2]


@pytest.mark.promise(
    "worker: killed, on local sets",
    "Its next attempt draws the same sets; exact.",
)
def test_a_worker_that_is_killed_draws_the_same_sets_again(spark, tmp_path):
    run = RunOnLocalSets(spark, tmp_path, every=3600)
    killer = at_epoch(3, lambda: kill(worker_pid(tmp_path, seat=0)))
    run.check(run.trainer.train(run.sets, seed=1, callbacks=[killer]))
    assert len(attempts(tmp_path, 0)) == 2


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
    import keras

    from distkeras_grid import EnsembleTrainer

    def trainer_of(**more):
        keras.utils.set_random_seed(3)
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
@pytest.mark.parametrize(("kind", "tolerance"), [("split", 1e-3), ("towers", 0.0)])
@pytest.mark.promise(
    "server: killed, with `ConvolutionSplit` and checkpoints",
    "The run begins again; the weights are those of an undisturbed run up to rounding.",
)
@pytest.mark.promise(
    "server: killed, with `Towers` and checkpoints",
    "The run begins again; the weights are those of an undisturbed run, bit for bit.",
)
def test_a_divided_model_is_that_of_an_undisturbed_run(spark, tmp_path, every, kind, tolerance):
    shape, _, build = divided_job.KINDS[kind]
    rows, epochs = divided_job.rows_of(spark, shape), 30

    def trainer_of(**more):
        terms = {"batch_size": 8, "num_epoch": epochs, "communication_window": 3}
        loss = "sparse_categorical_crossentropy"
        return build(loss, features_col="x", progress=False, **terms, **more)

    expected = weights_of(trainer_of().train(rows, shuffle=False, seed=1))
    trainer = trainer_of(**saving(tmp_path, every))
    with killed_server(trainer, divided_job.ROWS * epochs // 2):
        model = trainer.train(rows, shuffle=False, seed=1)
    assert trainer.history.samples == divided_job.ROWS * epochs
    np.testing.assert_allclose(weights_of(model), expected, rtol=0, atol=tolerance)
