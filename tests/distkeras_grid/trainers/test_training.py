"""Trainers on real Spark: each road once.

A worker alone, commits folded as they come, rounds, steps on the workers, members with centers of
their own; what travels with them (compression, optimizer state, weights of samples, the rate); what
the driver does meanwhile (validation, callbacks, an early stop). That the arithmetic
is right is tested without Spark: ``tests/invariants``, ``test_simulated.py``.
"""

from __future__ import annotations

import itertools
import sys

import numpy as np
import pytest

from distkeras_grid.errors import (
    NotEnoughSlotsError,
    ValidateError,
)
from distkeras_grid.history import History
from distkeras_grid.rules import RULES, build_rule, compression_of
from distkeras_grid.simulation.cluster import Cluster
from distkeras_grid.spec import Outliers, RunSpec
from distkeras_grid.trainers import TRAINERS
from distkeras_grid.trainers.saved_run import load
from tests.distkeras_grid.trainers.small import (
    CLASSES,
    ROWS,
    WIDTH,
    build,
    linear,
    trained,
    weights,
)
from tests.faults.counting import counting_data, counting_model, negative_sum

pytestmark = [pytest.mark.spark, pytest.mark.tensorflow]


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "momentum", "rate"),
    [("ADAG", 0.0, 0.2), ("SynchronousSGD", 0.5, 0.1)],
)
def test_exchanges_of_the_largest_changes_are_fewer_bytes_and_train_as_well(
    frame, arrays, capsys, name, momentum, rate
):
    import distkeras_grid

    before = build().evaluate(*arrays, verbose=0)[0]
    compression = distkeras_grid.DeepGradientCompression(0.9, momentum=momentum, warm_up_epochs=1)
    trainer = getattr(distkeras_grid, name)(
        build(), "sgd", learning_rate=rate, batch_size=8, num_epoch=4, compression=compression
    )
    trainer.train(frame, seed=5)
    assert trainer.model.evaluate(*arrays, verbose=0)[0] < 0.8 * before
    # A quarter of the kernels of 48 and 24 numbers in the first epoch, a tenth of them later.
    first, later = (
        min(r.bytes_up for r in trainer.history.records if r.worker == 0 and r.epoch == epoch)
        for epoch in (1, 3)
    )
    assert first - later == pytest.approx(8 * (12 + 6 - 5 - 3), abs=20)
    spec = RunSpec.from_json(trainer.run["spec"])
    assert compression_of(spec.exchange.compression) == compression
    assert "compression moved" in capsys.readouterr().err


def slow_where_marked(spark):
    """Rows in their order, and a model whose batches take ten times as long on the second half."""
    import keras
    import pyarrow as pa

    class Pause(keras.layers.Layer):
        def call(self, x):
            import time

            import tensorflow as tf

            def pause(rows):
                time.sleep(0.3 if rows[0, 0] > 50 else 0.03)
                return rows

            paused = tf.py_function(pause, [x], x.dtype)
            paused.set_shape(x.shape)
            return paused

    x = np.random.default_rng(1).normal(size=(ROWS, WIDTH)).astype(np.float32)
    x[:, 0] = np.repeat([0, 100], ROWS // 2)
    table = pa.table({"features": pa.array(list(x)), "label": pa.array(np.zeros(ROWS, np.int32))})
    model = keras.Sequential(
        [keras.Input((WIDTH,)), Pause(), keras.layers.Dense(CLASSES, activation="softmax")]
    )
    model.compile("sgd", "sparse_categorical_crossentropy")
    return spark.createDataFrame(table).coalesce(1), model, {"Pause": Pause}


@pytest.mark.full
@pytest.mark.parametrize("name", ["AveragingTrainer", "SynchronousSGD"])
def test_a_quorum_drops_what_comes_late_and_counts_it(spark, name):
    marked, model, objects = slow_where_marked(spark)
    trainer = trained(
        name,
        model,
        marked,
        quorum=0.5,
        batch_size=8,
        num_epoch=4,
        communication_window=1,
        custom_objects=objects,
        jit=False,
        train={"shuffle": False},
    )
    history = trainer.history
    assert {record.worker for record in history.late} == {1}
    assert all(record.staleness >= 1 for record in history.late)
    passed = history.samples + sum(record.samples for record in history.late)
    assert ROWS * 4 // 2 <= passed <= ROWS * 4
    assert len(history.epoch_records) == 4
    assert History.from_lines(history.lines()).late == history.late


@pytest.mark.full
def test_trainer_saved_run_and_simulation_tell_the_run_by_one_value(ordered, arrays, tmp_path):
    trainer = trained(
        "AveragingTrainer",
        build("adam"),
        ordered,
        num_workers=1,
        batch_size=8,
        communication_window=5,
        jit=False,
        train={"shuffle": False},
    )
    uri = (tmp_path / "run").as_uri()
    trainer.save(uri)
    saved = load(uri)
    np.testing.assert_array_equal(weights(saved.model), weights(trainer.model))
    assert saved.history.records == trainer.history.records
    spec = trainer.spec
    assert (spec.algorithm.trainer, spec.schedule.rows) == ("AveragingTrainer", ROWS)
    assert saved.spec == spec == RunSpec.from_json(spec.to_json())
    simulated = trainer.simulate(
        arrays, Cluster(1, batch_seconds=0.01), shuffle=False, seed=spec.schedule.seed
    )
    assert simulated.spec.change(data=spec.data) == trainer.spec == spec


@pytest.mark.full
@pytest.mark.parametrize(
    ("rows", "partitions", "workers"), [(50, 3, 2), (1, 1, 2), (1, 1, 1), (3, 2, 2)]
)
def test_every_sample_of_every_epoch_is_trained_exactly_once(
    spark, tmp_path, rows, partitions, workers
):
    data, epochs = counting_data(spark, rows).coalesce(partitions), 3
    loss = negative_sum(tmp_path)
    trainer = trained(
        "DOWNPOUR",
        counting_model(rows, loss),
        data,
        num_workers=workers,
        batch_size=4,
        num_epoch=epochs,
        communication_window=2,
        custom_objects={"loss": loss},
        features_col="x",
    )
    assert trainer.history.samples == rows * epochs
    np.testing.assert_array_equal(trainer.model.get_weights()[0], np.full((rows, 1), epochs))


@pytest.mark.parametrize(
    "name",
    [
        "AveragingTrainer",
        *(
            pytest.param(name, marks=pytest.mark.full)
            for name in sorted(set(TRAINERS) - {"AveragingTrainer", "SingleTrainer"})
            if name != "EnsembleTrainer"
        ),
    ],
)
def test_two_workers_learn_and_account_for_every_window(frame, arrays, name):
    before = build().evaluate(*arrays, verbose=0)[0]
    sgd = {"worker_optimizer": "sgd", "learning_rate": 0.2}
    trainer = trained(name, build(), frame, num_workers=2, batch_size=4, num_epoch=15, **sgd)
    table = trainer.history.to_pandas()
    assert set(table["worker"]) == {0, 1}
    assert table["samples"].sum() == ROWS * 15
    assert len(trainer.history.epoch_records) == 15
    assert trainer.num_updates == len(table)
    assert {"loss", "accuracy", "staleness", "bytes_up", "bytes_down"} <= set(table.columns)
    assert trainer.model.evaluate(*arrays, verbose=0)[0] < 0.8 * before
    assert build_rule(**trainer.run["spec"]["algorithm"]["rule"]).name in RULES
    assert 0 < trainer.get_training_time() < 60
    ready = [record.transport for record in trainer.history.workers if record.status == "ready"]
    assert ready == ["shared memory" if sys.platform == "linux" else "unix socket"] * 2
    if name == "DOWNPOUR":
        # Staleness of all commits, and of the unfinished ones, is (n - 1) times the commits.
        last = table.groupby("worker")["version"].max()
        assert table["staleness"].sum() + (len(table) - last).sum() == len(table)


# -- refusals, before work starts ---------------------------------------------------------------


def test_more_workers_than_a_local_master_has_slots_are_refused_before_any_work(spark):
    """No further slots can come: before, the run waited for start_timeout."""
    from distkeras_grid import ADAG

    # Rows that cannot be counted: nobody looks at more than the first.
    features = f"array_repeat(cast(id as float), {WIDTH}) as features"
    data = spark.range(4).selectExpr(features, "id as label")
    data = data.where("if(label = 3, raise_error('the data were read') is null, true)")
    with pytest.raises(NotEnoughSlotsError):
        ADAG(build(), num_workers=3).train(data)


@pytest.fixture(scope="module")
def poisoned(spark, arrays):
    """The second half of the rows, those of worker 1, are too large and not those of their labels.

    Rows that are only too large would still tell a linear net the sign of its weights.
    """
    import pyarrow as pa

    x, y = arrays
    scaled = x.copy()
    scaled[ROWS // 2 :] = 1e6 * x[ROWS // 2 :][::-1]
    table = pa.table({"features": pa.array(list(scaled)), "label": pa.array(y.astype(np.int32))})
    return spark.createDataFrame(table).coalesce(1).cache()


@pytest.mark.full
def test_a_poisoned_worker_is_named_and_the_others_train_on(poisoned, arrays, capsys):
    from distkeras_grid import AveragingTrainer

    trainer = AveragingTrainer(
        linear(),
        "sgd",
        learning_rate=0.1,
        num_workers=2,
        num_epoch=6,
        batch_size=4,
        validate=Outliers(),
    )
    model, history = trainer.train(poisoned, shuffle=False, seed=5), trainer.history
    # As of rows that nobody has spoiled; `simulation/test_run.py` has the run without the filter.
    assert model.evaluate(*arrays, verbose=0)[0] < 1.0
    assert {record.worker for record in history.skipped} == {1}
    assert all(record.host and record.reason for record in history.skipped)
    assert history.samples + history.samples_skipped == 6 * ROWS
    assert "Worker 1 on " in capsys.readouterr().err


@pytest.mark.full
@pytest.mark.promise(
    "user's function of `validate`: raises an error on a worker",
    "One `ValidateError` with the error, without further attempts; the center is whole.",
)
def test_a_function_of_the_users_leaves_windows_out_until_it_fails(ordered):
    from distkeras_grid import DOWNPOUR

    calls = itertools.count()

    def mine(loss, metrics, sent):
        """Of each worker, the first window is left out, and the third is one too many."""
        number = next(calls)
        if number == 2:
            raise LookupError("my own mistake")
        return None if number else f"{type(sent).__name__} {sorted(metrics)}"

    trainer = DOWNPOUR(
        linear(),
        "sgd",
        learning_rate=0.1,
        num_workers=2,
        batch_size=4,
        communication_window=1,
        validate=mine,
    )
    with pytest.raises(ValidateError, match=r"'.*mine' .*LookupError: my own mistake"):
        trainer.train(ordered, seed=5)
    assert {record.reason for record in trainer.history.skipped} == {"ndarray ['accuracy']"}
    assert all(np.isfinite(each).all() for each in trainer.model.get_weights())


@pytest.mark.full
def test_what_a_worker_holds_opens_neither_another_seat_nor_the_drivers_door(frame, tmp_path):
    from distkeras_grid import DOWNPOUR

    def intrude(plan, batches):
        from pyspark import TaskContext

        from distkeras_grid.errors import AuthenticationError
        from distkeras_grid.parameter_server.driver_client import DriverClient
        from distkeras_grid.worker.task import connect, run_worker

        context = TaskContext.get()
        seat, attempt = context.partitionId(), context.taskAttemptId()
        doors = {
            "seat": lambda: connect(plan, 1 - seat, attempt),
            "driver": lambda: DriverClient.connect(
                plan.address, plan.key, plan.run, plan.spec.size, 10
            ),
        }
        for name, enter in doors.items():
            try:
                enter().close()
                found = "open"
            except AuthenticationError:
                found = "closed"
            (tmp_path / f"{name} of {seat} {found}").touch()
        yield from run_worker(plan, batches)

    class Intruders(DOWNPOUR):
        def execute(self, prepared, progress):
            return prepared.execute(progress, work=intrude)

    trainer = Intruders(build(), num_workers=2, batch_size=8, progress=False)
    trainer.train(frame, seed=5)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        *(f"driver of {seat} closed" for seat in (0, 1)),
        *(f"seat of {seat} closed" for seat in (0, 1)),
    ]
