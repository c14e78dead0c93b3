"""Whether a request is for the same run, and runs that go on from checkpoints, on real Spark."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from distkeras_grid import AveragingTrainer, PlacedLayers, SingleTrainer
from distkeras_grid.checkpoints import FORMAT, CheckpointManifest
from distkeras_grid.errors import ConfigurationError
from distkeras_grid.spec import (
    CompressionSpec,
    LocalSpec,
    PreviousProgress,
    RuleSpec,
)
from distkeras_grid.trainers.config import TrainingData
from distkeras_grid.trainers.resume import (
    change_of_workers,
    check_same_run,
    resumed_spec,
    with_saved_settings,
)
from tests.distkeras_grid.spark.test_file_splits import small_cuts, write_files  # noqa: F401 - a fixture
from tests.distkeras_grid.trainers.small import CLASSES, WIDTH, weights
from tests.faults.counting import counting_data, from_epoch
from tests.faults.test_smoke import EPOCHS as COUNTED_EPOCHS
from tests.faults.test_smoke import ROWS as COUNTED
from tests.faults.test_smoke import counting_trainer
from tests.specs import make_spec

EPOCHS = 12
SPEC = make_spec(workers=3, seed=11, batch_size=8, source="hdfs:///then")


class AnyModel:
    """Stands for a model whose arguments are checked without it."""

    get_config = fit = None


def checkpoint(spec=SPEC, cuts=None):
    manifest = CheckpointManifest(FORMAT, 4, "run", 0.0, 9, 90, 1, spec.to_json(), False, ())
    return SimpleNamespace(manifest=manifest, spec=spec, driver=SimpleNamespace(cuts=cuts))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"source": "hdfs:///now", "validation": "hdfs:///other"},
        {"start_timeout": 5.0, "round_timeout": None, "threads": 2},
        {"snapshots_per_epoch": 1, "jit": True},
    ],
)
def test_a_run_with_other_limits_at_another_place_is_the_same(changes):
    check_same_run(SPEC.change(**changes), checkpoint())


@pytest.mark.parametrize(
    "changes",
    [
        {"batch_size": 9},
        {"epochs": 7},
        {"rows": 99},
        {"seed": 12},
        {"trainable_size": 9},
        {"rule": RuleSpec(name="averaging")},
        {"quorum": 0.5},
        {"labels": ({"name": "other"},)},
        {"compression": CompressionSpec(name="bfloat16")},
        {"compile": {"loss": "mse"}},
    ],
)
def test_another_run_is_refused_by_the_name_of_what_differs(changes):
    (name,) = changes
    with pytest.raises(ConfigurationError, match=name):
        check_same_run(SPEC.change(**changes), checkpoint())


def test_another_number_of_workers_is_the_same_run_with_its_own_window_and_numbers():
    rule = RuleSpec(name=SPEC.rule.name, parameters={"commit_scale": 0.25})
    check_same_run(SPEC.change(workers=4, window=9, rule=rule), checkpoint())
    with pytest.raises(ConfigurationError, match="window"):
        check_same_run(SPEC.change(window=9), checkpoint())
    with pytest.raises(ConfigurationError, match="batch_size"):
        check_same_run(SPEC.change(workers=4, batch_size=9), checkpoint())


@pytest.mark.parametrize(
    "changes",
    [
        {"rule": RuleSpec(name="member")},
        {"share": "bootstrap"},
        {"local": LocalSpec(local_train=5)},
        {"servers": 2},
    ],
)
def test_other_workers_cannot_go_on_with_what_is_not_theirs(changes):
    begun = SPEC.change(**changes)
    with pytest.raises(ConfigurationError, match="3 workers"):
        check_same_run(begun.change(workers=4, rows=400), checkpoint(begun))


def test_workers_that_have_taken_over_keep_what_was_trained_before():
    earlier = PreviousProgress(epochs=1, version=9, folded=130)
    found = resumed_spec(SPEC, checkpoint(SPEC.change(earlier=earlier)))
    assert found.schedule.earlier == earlier
    assert (found.schedule.repeated, change_of_workers(found, checkpoint())) == (30, {})


@pytest.mark.parametrize(("asked", "workers"), [(None, 3), (5, 5)])
@pytest.mark.parametrize(("given", "seed"), [(False, 11), (True, 7)])
def test_what_a_run_has_chosen_itself_it_keeps(asked, workers, given, seed):
    config = AveragingTrainer(AnyModel(), num_workers=asked).checked()
    data = TrainingData(None, shuffle=True, seed=7, seed_chosen=given)
    config, data = with_saved_settings(config, data, checkpoint())
    assert (config.num_workers, data.seed) == (workers, seed)


@pytest.mark.parametrize(
    ("asked", "cuts", "found"),
    [(None, ["one", "two"], 3), (None, [], 1), (4, ["one", "two"], 4), (None, None, 0)],
)
def test_a_run_in_stages_has_those_with_which_it_began(asked, cuts, found):
    config = PlacedLayers(AnyModel(), num_workers=asked).checked()
    data = TrainingData(None, shuffle=True, seed=7)
    config, _ = with_saved_settings(config, data, checkpoint(cuts=cuts))
    assert (config.stages, config.devices, config.requested_workers) == (found, found, 1)


def build(seed=2):
    """A net with everything that a center does not have: moments, generators, statistics.

    Without a seed of its own, dropout is another one in each run: Keras does not save it.
    """
    import keras

    keras.utils.set_random_seed(seed)
    layers = [
        keras.Input((WIDTH,)),
        keras.layers.Dense(8, activation="tanh"),
        keras.layers.BatchNormalization(),
        keras.layers.Dropout(0.3, seed=4),
        keras.layers.Dense(CLASSES, activation="softmax"),
    ]
    model = keras.Sequential(layers)
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def failing(epoch, error=KeyboardInterrupt):
    import keras

    def fail(number, _):
        if number == epoch:
            raise error

    return keras.callbacks.LambdaCallback(on_epoch_end=fail)


def trainer_of(kind, folder=None, model=None, **arguments):
    saving = {} if folder is None else {"checkpoint_dir": str(folder), "resume": "auto"}
    settings = {"batch_size": 8, "num_epoch": EPOCHS, "progress": False, **saving, **arguments}
    return kind(model or build(), **settings)


def resumed(trainer):
    return [record for record in trainer.history.workers if record.status == "continued"]


@pytest.mark.full
@pytest.mark.spark
@pytest.mark.tensorflow
@pytest.mark.parametrize(
    ("kind", "workers", "error"),
    [(SingleTrainer, 1, ZeroDivisionError), (AveragingTrainer, 2, KeyboardInterrupt)],
)
@pytest.mark.promise(
    "driver: interrupted, or an error of a callback, with checkpoints",
    "A last checkpoint is written; the run goes on bit for bit.",
)
def test_an_interrupted_run_goes_on_bit_for_bit(frame, tmp_path, kind, workers, error):
    options = {"num_workers": workers, "communication_window": 1}
    undisturbed = trainer_of(kind, **options)
    undisturbed.train(frame, seed=1, callbacks=[failing(99)])
    first = trainer_of(kind, tmp_path / "checkpoints", **options)
    with pytest.raises(error) as interrupt:
        first.train(frame, seed=1, callbacks=[failing(1, error)])
    assert not hasattr(interrupt.value, "__notes__"), interrupt.value.__notes__
    assert list((tmp_path / "checkpoints").glob("checkpoint-*"))
    # The model of the moment, and the history up to it.
    assert first.model is not None
    assert len(first.history.epoch_records) >= 2
    # Another process would draw other initial weights, and other seeds of its layers.
    second = trainer_of(kind, tmp_path / "checkpoints", build(seed=77), **options)
    second.train(frame, callbacks=[failing(99)])
    np.testing.assert_array_equal(weights(second.model), weights(undisturbed.model))
    assert second.history.samples == undisturbed.history.samples
    assert second.history.history["loss"] == undisturbed.history.history["loss"]
    continued = resumed(second)
    assert {record.worker for record in continued} == set(range(workers))
    assert all(record.windows == record.state_windows for record in continued)
    assert 0 < second.run["resumed"][0]["samples"] <= first.history.samples
    assert sum(each["samples"] for each in second.run["workers"]) == second.history.samples
    if workers == 1:
        return
    # The run is complete, so that going on changes nothing.
    third = trainer_of(kind, tmp_path / "checkpoints", **options)
    third.train(frame, callbacks=[failing(99)])
    np.testing.assert_array_equal(weights(third.model), weights(undisturbed.model))


@pytest.mark.full
@pytest.mark.spark
@pytest.mark.tensorflow
def test_a_run_goes_on_with_the_rows_as_they_came_when_it_began(frame, tmp_path):
    """Another execution of the same program would get them in another order."""
    from pyspark.sql import functions as F

    def drawn():
        return frame.withColumn("drawn", F.rand()).orderBy("drawn")

    first = trainer_of(SingleTrainer, tmp_path / "checkpoints")
    with pytest.raises(KeyboardInterrupt):
        first.train(drawn(), seed=1, callbacks=[failing(1)])
    told = first.run["stored_rows"]
    assert told["bytes"] > 0
    second = trainer_of(SingleTrainer, tmp_path / "checkpoints")
    second.train(drawn(), callbacks=[failing(99)])
    assert second.history.samples == EPOCHS * frame.count()
    assert second.run["stored_rows"] == {**told, "seconds": 0.0}


@pytest.mark.full
@pytest.mark.spark
@pytest.mark.tensorflow
@pytest.mark.usefixtures("small_cuts")
def test_a_run_goes_on_with_other_cores(frame, spark, tmp_path):
    """Spark cuts files by its cores; rows that are cut otherwise are not those of the run."""
    from pyspark.sql import functions as F

    setting, folder = "spark.sql.leafNodeDefaultParallelism", str(tmp_path / "rows")
    write_files(frame.withColumn("id", F.monotonically_increasing_id()), folder)
    spark.conf.set(setting, 1)
    try:
        first = trainer_of(SingleTrainer, tmp_path / "checkpoints")
        with pytest.raises(KeyboardInterrupt):
            first.train(folder, seed=1, callbacks=[failing(1)])
        spark.conf.set(setting, 21)
        second = trainer_of(SingleTrainer, tmp_path / "checkpoints")
        second.train(folder, callbacks=[failing(99)])
        assert spark.conf.get(setting) == "21"
    finally:
        spark.conf.unset(setting)
    assert second.history.samples == EPOCHS * frame.count()
    assert second.history.params["read_parallelism"] == 1


@pytest.mark.full
@pytest.mark.spark
@pytest.mark.tensorflow
@pytest.mark.promise(
    "driver: interrupted, and another number of workers goes on",
    "They begin with the epoch that was not complete; what is trained again is told.",
)
def test_other_workers_go_on_with_the_epoch_that_was_not_complete(spark, tmp_path):
    """From two workers to one and back; what was trained of the epoch is trained again."""
    folder = tmp_path / "checkpoints"
    saving = {"checkpoint_dir": str(folder), "checkpoint_every": 0.3, "resume": "auto"}

    def interrupt():
        raise KeyboardInterrupt

    told = []
    for workers, until in [(2, 4), (1, 9), (2, None)]:
        trainer = counting_trainer("DOWNPOUR", tmp_path, num_workers=workers, **saving)
        # The callbacks must be of the same classes. Workers go on while the driver interrupts: the
        # next run may begin behind any epoch that is named here.
        callbacks = [from_epoch(until or 10**6, interrupt)]
        if until is None:
            trainer.train(counting_data(spark, COUNTED), seed=1, callbacks=callbacks)
        else:
            with pytest.raises(KeyboardInterrupt):
                trainer.train(counting_data(spark, COUNTED), seed=1, callbacks=callbacks)
        told = trainer.run.get("resumed", [])
    assert [(each["workers_before"], each["workers"]) for each in told] == [(2, 1), (1, 2)]
    repeated = [int(each["repeated"]) for each in told]
    assert all(0 <= samples < COUNTED for samples in repeated)
    weights = trainer.model.get_weights()[0]
    assert weights.sum() == trainer.history.samples == COUNTED * COUNTED_EPOCHS + sum(repeated)
    # Epochs are counted in samples: one of two workers may have been ahead of the other.
    assert np.abs(weights - COUNTED_EPOCHS).max() < COUNTED_EPOCHS / 2
    assert trainer.history.epoch == list(range(COUNTED_EPOCHS))
