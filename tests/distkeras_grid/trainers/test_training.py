"""Trainers on real Spark: equal to ``fit``, every sample counted, callbacks, refusals."""

from __future__ import annotations

import json

import numpy as np
import pytest

from distkeras_grid.errors import (
    ConfigurationError,
    LabelError,
    NonFiniteLossError,
    NotEnoughSlotsError,
    SplitLeakError,
    UnknownArgumentError,
)
from distkeras_grid.history import History
from distkeras_grid.rules import RULES, build_rule, compression_of
from distkeras_grid.spec import RunSpec
from distkeras_grid.trainers import TRAINERS
from distkeras_grid.trainers.saved_run import load

pytestmark = [pytest.mark.spark, pytest.mark.tensorflow]

ROWS, WIDTH, CLASSES = 200, 6, 3


@pytest.fixture(scope="module")
def arrays():
    random = np.random.default_rng(7)
    x = random.normal(size=(ROWS, WIDTH)).astype(np.float32)
    y = (x @ random.normal(size=(WIDTH, CLASSES))).argmax(axis=1)
    return x, y


@pytest.fixture(scope="module")
def frame(spark, arrays):
    import pyarrow as pa

    x, y = arrays
    table = pa.table({"features": pa.array(list(x)), "label": pa.array(y.astype(np.int32))})
    return spark.createDataFrame(table).repartition(3).cache()


@pytest.fixture(scope="module")
def ordered(spark, arrays):
    import pyarrow as pa

    x, y = arrays
    table = pa.table({"features": pa.array(list(x)), "label": pa.array(y.astype(np.int32))})
    return spark.createDataFrame(table).coalesce(1).cache()


def build(optimizer="sgd", **compiled):
    import keras

    keras.utils.set_random_seed(3)
    model = keras.Sequential(
        [
            keras.Input((WIDTH,)),
            keras.layers.Dense(8, activation="tanh"),
            keras.layers.Dense(CLASSES, activation="softmax"),
        ]
    )
    settings = {"loss": "sparse_categorical_crossentropy", "metrics": ["accuracy"], **compiled}
    model.compile(optimizer=optimizer, **settings)
    return model


def weights(model):
    return np.concatenate([w.ravel() for w in model.get_weights()])


def trained(name, model, data, /, *, train=None, **arguments):
    import distkeras_grid

    trainer = getattr(distkeras_grid, name)(model, progress=False, **arguments)
    trainer.train(data, **{"seed": 5, **(train or {})})
    return trainer


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_S1_single_trainer_equals_fit_bit_for_bit(ordered, arrays, optimizer):
    expected = build(optimizer)
    expected.fit(*arrays, batch_size=8, epochs=8, shuffle=False, verbose=0)
    trainer = trained(
        "SingleTrainer",
        build(optimizer),
        ordered,
        batch_size=8,
        num_epoch=8,
        jit=False,
        train={"shuffle": False},
    )
    assert sum(record.steps for record in trainer.history.records) == 200
    np.testing.assert_array_equal(weights(trainer.model), weights(expected))


def test_a_schedule_given_to_the_trainer_is_followed_as_by_fit(ordered, arrays):
    import keras

    def scheduled():
        return keras.optimizers.SGD(keras.optimizers.schedules.CosineDecay(0.5, 50))

    expected = build(scheduled())
    expected.fit(*arrays, batch_size=8, epochs=2, shuffle=False, verbose=0)
    trainer = trained(
        "SingleTrainer",
        build(),
        ordered,
        worker_optimizer=scheduled(),
        batch_size=8,
        num_epoch=2,
        jit=False,
        train={"shuffle": False},
    )
    np.testing.assert_array_equal(weights(trainer.model), weights(expected))


def test_D1_downpour_with_one_worker_and_window_1_equals_fit(ordered, arrays):
    expected = build()
    expected.fit(*arrays, batch_size=8, epochs=2, shuffle=False, verbose=0)
    trainer = trained(
        "DOWNPOUR",
        build(),
        ordered,
        batch_size=8,
        num_epoch=2,
        num_workers=1,
        communication_window=1,
        train={"shuffle": False},
    )
    np.testing.assert_allclose(weights(trainer.model), weights(expected), rtol=0, atol=2e-6)


def test_A2_adag_with_one_worker_equals_lookahead(ordered, arrays):
    """Lookahead(k, 1/k): after k inner steps the slow weights move by 1/k of the way."""
    x, y = arrays
    inner = build("adam")
    window = 5
    slow = inner.get_weights()
    for start in range(0, ROWS, 8 * window):
        for batch in range(start, start + 8 * window, 8):
            inner.train_on_batch(x[batch : batch + 8], y[batch : batch + 8])
        slow = [s + (f - s) / window for s, f in zip(slow, inner.get_weights(), strict=True)]
        inner.set_weights(slow)
    trainer = trained(
        "ADAG",
        build("adam"),
        ordered,
        batch_size=8,
        num_workers=1,
        communication_window=window,
        train={"shuffle": False},
    )
    expected = np.concatenate([w.ravel() for w in slow])
    np.testing.assert_allclose(weights(trainer.model), expected, rtol=0, atol=2e-6)


@pytest.mark.parametrize(
    "name", [name for name in TRAINERS if name not in ("SingleTrainer", "EnsembleTrainer")]
)
def test_every_trainer_folds_every_sample_and_learns(frame, arrays, name):
    before = build().evaluate(*arrays, verbose=0)[0]
    trainer = trained(
        name, build(), frame, worker_optimizer="sgd", learning_rate=0.2, batch_size=8, num_epoch=6
    )
    assert trainer.history.samples == 6 * ROWS
    assert sorted({record.worker for record in trainer.history.records}) == [0, 1]
    assert trainer.model.evaluate(*arrays, verbose=0)[0] < 0.8 * before
    assert build_rule(**trainer.run["spec"]["algorithm"]["rule"]).name in RULES


def test_downpour_with_adagrad_on_the_server_learns(frame, arrays):
    before = build().evaluate(*arrays, verbose=0)[0]
    trainer = trained(
        "DOWNPOUR",
        build(),
        frame,
        server_optimizer="adagrad",
        server_learning_rate=0.2,
        batch_size=8,
        num_epoch=4,
    )
    assert trainer.run["spec"]["schedule"]["window"] == 1
    assert trainer.history.samples == 4 * ROWS
    assert trainer.model.evaluate(*arrays, verbose=0)[0] < 0.8 * before


def test_compressed_exchanges_take_half_the_bytes_and_train_as_well(frame, arrays, capsys):
    import distkeras_grid

    before = build().evaluate(*arrays, verbose=0)[0]
    trainer = distkeras_grid.ADAG(
        build(), "sgd", learning_rate=0.2, batch_size=8, num_epoch=4, compression="bfloat16"
    )
    trainer.train(frame, seed=5)
    plain = trained("ADAG", build(), frame, batch_size=8)
    assert trainer.model.evaluate(*arrays, verbose=0)[0] < 0.8 * before
    record, other = trainer.history.records[0], plain.history.records[0]
    vector = 2 * trainer.model.count_params()
    assert other.bytes_up - record.bytes_up == pytest.approx(vector, abs=40)
    assert other.bytes_down - record.bytes_down == pytest.approx(vector, abs=40)
    assert "compression moved" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "momentum", "rate"), [("ADAG", 0.0, 0.2), ("SynchronousSGD", 0.5, 0.1)]
)
def test_exchanges_of_the_largest_changes_are_fewer_bytes_and_train_as_well(
    frame, arrays, capsys, name, momentum, rate
):
    import distkeras_grid

    before = build().evaluate(*arrays, verbose=0)[0]
    compression = distkeras_grid.DeepGradientCompression(0.9, momentum=momentum, warm_up_epochs=0)
    trainer = getattr(distkeras_grid, name)(
        build(), "sgd", learning_rate=rate, batch_size=8, num_epoch=4, compression=compression
    )
    trainer.train(frame, seed=5)
    assert trainer.model.evaluate(*arrays, verbose=0)[0] < 0.8 * before
    plain = trained(name, build(), frame, batch_size=8)
    vector = 4 * trainer.model.count_params()
    record, other = trainer.history.records[0], plain.history.records[0]
    # 5 + 3 numbers of the kernels, 11 biases.
    assert other.bytes_up - record.bytes_up == pytest.approx(vector - 8 * 19, abs=20)
    spec = RunSpec.from_json(trainer.run["spec"])
    assert compression_of(spec.exchange.compression) == compression
    told = capsys.readouterr().err
    assert "compression holds back 90% of each change" in told
    assert "compression moved" in told


def test_weights_are_not_compressed(frame):
    with pytest.raises(ConfigurationError, match="AEASGD sends weights"):
        trained("AEASGD", build(), frame, compression="bfloat16")


def test_momentum_is_not_corrected_under_adam(frame):
    import distkeras_grid

    corrected = distkeras_grid.DeepGradientCompression(momentum=0.9)
    with pytest.raises(ConfigurationError, match=r"brings the momentum itself.*Received: Adam"):
        trained("SynchronousSGD", build("adam"), frame, compression=corrected)


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
    assert History.from_jsonl_text(history.to_jsonl_text()).late == history.late


def test_Q5_synchronous_sgd_is_fit_with_the_batches_of_all_workers(ordered, arrays):
    """Adam: slots included; two workers with batches of 8 make the steps of one with 16."""
    from distkeras_grid.engine.keras_model import get_flat_weights

    x, y = arrays
    expected = build("adam")
    for _ in range(2):
        for start in range(0, ROWS // 2, 8):
            rows = np.r_[start : min(start + 8, 100), 100 + start : min(108 + start, 200)]
            expected.train_on_batch(x[rows], y[rows])
    trainer = trained(
        "SynchronousSGD",
        build("adam"),
        ordered,
        batch_size=8,
        num_epoch=2,
        train={"shuffle": False, "validation_data": ordered},
    )
    found = get_flat_weights(trainer.model)
    np.testing.assert_allclose(found, get_flat_weights(expected), rtol=0, atol=2e-5)
    assert len(trainer.history.history["val_loss"]) == 2
    assert trainer.history.samples == 2 * ROWS


@pytest.mark.parametrize("policy", ["keep", "reset", "average"])
def test_the_optimizers_state_is_kept_or_begins_anew_and_the_saved_run_says_so(
    ordered, arrays, tmp_path, policy
):
    x, y = arrays
    expected = build("adam")
    for start in range(0, ROWS, 40):
        if policy == "reset":
            expected.compile("adam", expected.loss)
        for row in range(start, start + 40, 8):
            expected.train_on_batch(x[row : row + 8], y[row : row + 8])
    trainer = trained(
        "AveragingTrainer",
        build("adam"),
        ordered,
        num_workers=1,
        batch_size=8,
        communication_window=5,
        optimizer_state=policy,
        jit=False,
        train={"shuffle": False},
    )
    np.testing.assert_array_equal(weights(trainer.model), weights(expected))
    uri = str(tmp_path / "run")
    trainer.save(uri)
    saved = load(uri)
    for told in (saved.history.params, saved.run):
        assert (told["optimizer_state"], told["statistics"]) == (policy, "own")
    if policy == "average":  # Of one worker: its own, from which a later run goes on as fit would.
        for mine, theirs in zip(
            saved.model.optimizer.variables, expected.optimizer.variables, strict=True
        ):
            np.testing.assert_array_equal(np.asarray(mine), np.asarray(theirs))


def test_one_shot_averaging_exchanges_once(ordered, arrays):
    """Zinkevich: the mean of workers that never met; with one, fit itself."""
    expected = build()
    expected.fit(*arrays, batch_size=8, epochs=3, shuffle=False, verbose=0)
    trainer = trained(
        "AveragingTrainer",
        build(),
        ordered,
        batch_size=8,
        num_epoch=3,
        num_workers=1,
        communication_window="once",
        train={"shuffle": False},
    )
    assert [(r.steps, r.samples) for r in trainer.history.records] == [(75, 600)]
    np.testing.assert_allclose(weights(trainer.model), weights(expected), rtol=0, atol=2e-6)


def test_N1_an_ensemble_of_one_is_the_single_trainer(ordered):
    common = {"batch_size": 8, "num_epoch": 2, "train": {"shuffle": False}}
    single = trained("SingleTrainer", build("adam"), ordered, **common)
    ensemble = trained("EnsembleTrainer", build("adam"), ordered, num_workers=1, **common)
    (member,) = ensemble.models
    np.testing.assert_array_equal(weights(member), weights(single.model))


def test_N2_members_train_alone_each_on_all_rows(frame, arrays, tmp_path):
    common = {"batch_size": 8, "num_epoch": 3, "worker_optimizer": "sgd", "learning_rate": 0.2}
    two = trained("EnsembleTrainer", build(), frame, num_workers=2, **common)
    one = trained("EnsembleTrainer", build(), frame, num_workers=1, **common)
    assert two.history.samples == 2 * 3 * ROWS
    assert {record.staleness for record in two.history.records} == {0}
    assert not np.allclose(weights(two.models[0]), weights(two.models[1]))
    np.testing.assert_allclose(weights(two.models[0]), weights(one.models[0]), atol=1e-6)
    best = min(member.evaluate(*arrays, verbose=0)[0] for member in two.models)
    loss, accuracy = two.model.evaluate(*arrays, verbose=0)
    assert accuracy > 0.6
    assert loss < 2 * best
    two.save(tmp_path.as_uri() + "/run")
    loaded = load(tmp_path.as_uri() + "/run").model
    np.testing.assert_allclose(loaded.predict(arrays[0], verbose=0), two.model(arrays[0]), 1e-5)


@pytest.mark.parametrize(("data", "samples"), [("partition", ROWS), ("bootstrap", 2 * ROWS)])
def test_members_train_on_their_share_or_on_a_sample(frame, data, samples):
    trainer = trained("EnsembleTrainer", build(), frame, data=data, batch_size=8)
    assert trainer.history.samples == samples
    assert len(trainer.models) == 2


def test_an_ensemble_refuses_what_looks_at_one_center(frame):
    with pytest.raises(ConfigurationError, match="as many centers as members"):
        trained("EnsembleTrainer", build(), frame, train={"validation_data": frame})


@pytest.mark.parametrize("name", ["GEM", "EAMSGD"])
def test_rules_of_plain_gradients_refuse_another_optimizer(frame, name):
    with pytest.raises(ConfigurationError, match=rf"{name} makes its steps .* Received: Adam"):
        trained(name, build("adam"), frame)


def counting_model(rows):
    """One weight per row; the loss is the negative sum, so SGD(1.0) adds 1 per visit."""
    import keras

    model = keras.Sequential(
        [keras.Input((1,)), keras.layers.Embedding(rows, 1, embeddings_initializer="zeros")]
    )
    model.compile(keras.optimizers.SGD(1.0), loss=negative_sum)
    return model


def negative_sum(_, predicted):
    """Sum over the batch: Keras divides by its size, which is multiplied back."""
    import keras

    total = -keras.ops.sum(predicted)
    return keras.ops.cast(keras.ops.ones_like(predicted[:, 0, 0]), "float32") * total


@pytest.mark.parametrize(
    ("rows", "partitions", "workers"), [(50, 3, 2), (1, 1, 2), (1, 1, 1), (3, 2, 2)]
)
def test_every_sample_of_every_epoch_is_trained_exactly_once(spark, rows, partitions, workers):
    data = spark.range(rows, numPartitions=partitions).selectExpr(
        "cast(id as float) as features", "0 as label"
    )
    epochs = 3
    trainer = trained(
        "DOWNPOUR",
        counting_model(rows),
        data,
        num_workers=workers,
        batch_size=4,
        num_epoch=epochs,
        communication_window=2,
        custom_objects={"negative_sum": negative_sum},
    )
    assert trainer.history.samples == rows * epochs
    np.testing.assert_array_equal(trainer.model.get_weights()[0], np.full((rows, 1), epochs))


@pytest.mark.parametrize("name", ["DOWNPOUR", "ADAG", "AEASGD", "AveragingTrainer"])
def test_two_workers_learn_and_account_for_every_window(frame, name):
    import keras

    model = build(keras.optimizers.Adam(0.01))
    trainer = trained(name, model, frame, num_workers=2, batch_size=4, num_epoch=15)
    table = trainer.history.to_pandas()
    assert set(table["worker"]) == {0, 1}
    assert table["samples"].sum() == ROWS * 15
    assert len(trainer.history.epoch_records) == 15
    assert trainer.num_updates == len(table)
    assert {"loss", "accuracy", "staleness", "bytes_up", "bytes_down"} <= set(table.columns)
    assert trainer.history.history["accuracy"][-1] > 0.8
    assert 0 < trainer.get_training_time() < 60
    assert all(record.locality for record in trainer.history.workers)
    assert sum(trainer.history.params["reading"].values()) > 0


def test_staleness_identity_on_the_real_server(frame):
    """Staleness of all commits, and of the unfinished ones, is (n - 1) times the commits."""
    trainer = trained("DOWNPOUR", build(), frame, num_workers=2, batch_size=4, num_epoch=2)
    records = trainer.history.records
    version = len(records)
    last = {r.worker: r.version for r in records}
    in_flight = sum(version - last[worker] for worker in (0, 1))
    assert sum(r.staleness for r in records) + in_flight == version


def test_elastic_workers_and_center_keep_their_sum_on_average(frame):
    """With alpha = 1/2 worker and center meet; two workers of a linear model agree in the end."""
    trainer = trained(
        "AEASGD", build("adam"), frame, num_workers=2, batch_size=4, num_epoch=10, alpha=0.5
    )
    assert trainer.history.history["loss"][-1] < trainer.history.history["loss"][0]


def test_validation_and_callbacks_see_the_center_of_each_epoch(frame, tmp_path):
    import keras

    class Watch(keras.callbacks.Callback):
        def __init__(self):
            super().__init__()
            self.seen = []

        def on_epoch_end(self, epoch, logs=None):
            self.seen.append((epoch, logs, weights(self.model).copy()))

    watch = Watch()
    callbacks = [
        watch,
        keras.callbacks.CSVLogger(tmp_path / "log.csv"),
        keras.callbacks.ModelCheckpoint(tmp_path / "best.keras", monitor="val_loss"),
        keras.callbacks.TensorBoard(tmp_path / "board"),
    ]
    trainer = trained(
        "ADAG",
        build("adam"),
        frame,
        num_workers=2,
        batch_size=8,
        num_epoch=3,
        train={"validation_data": frame, "callbacks": callbacks},
    )
    assert [epoch for epoch, _, _ in watch.seen] == [0, 1, 2]
    assert {"loss", "accuracy", "val_loss", "val_accuracy"} <= set(watch.seen[0][1])
    assert not np.array_equal(watch.seen[0][2], watch.seen[2][2])
    np.testing.assert_array_equal(watch.seen[2][2], weights(trainer.model))
    assert len((tmp_path / "log.csv").read_text().splitlines()) == 4
    assert (tmp_path / "best.keras").exists()
    assert list((tmp_path / "board").rglob("events*"))


def test_early_stopping_stops_the_workers_and_keeps_the_best_weights(frame):
    import keras

    class StopAfterTwo(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):  # noqa: ARG002
            self.kept = weights(self.model).copy()
            if epoch == 1:
                self.model.stop_training = True

    stop = StopAfterTwo()
    trainer = trained(
        "ADAG",
        build("adam"),
        frame,
        num_workers=2,
        batch_size=4,
        num_epoch=500,
        train={"callbacks": [stop]},
    )
    assert len(trainer.history.epoch_records) == 2
    # All that is told ends with the epoch in which the callback stopped.
    last = trainer.history.epoch_records[-1]
    assert trainer.history.samples == last.samples < ROWS * 500
    assert max(record.version for record in trainer.history.records) == last.version
    np.testing.assert_array_equal(weights(trainer.model), stop.kept)


def test_a_changed_learning_rate_reaches_the_workers(frame):
    import keras

    class Freeze(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):  # noqa: ARG002
            self.model.optimizer.learning_rate = 1e-30

    trainer = trained(
        "DOWNPOUR",
        build("sgd"),
        frame,
        num_workers=1,
        batch_size=4,
        num_epoch=100,
        train={"callbacks": [Freeze()]},
    )
    # Workers do not wait for the callback: it takes some of these very short epochs to arrive.
    losses = trainer.history.history["loss"]
    assert losses[-1] == pytest.approx(losses[-2], rel=1e-5)
    assert losses[0] > losses[-1]


def test_a_rate_scheduler_rules_from_the_first_epoch_on(frame):
    import keras

    model = build("sgd")
    trainer = trained(
        "DOWNPOUR",
        model,
        frame,
        num_workers=1,
        batch_size=4,
        num_epoch=2,
        train={"callbacks": [keras.callbacks.LearningRateScheduler(lambda _: 1e-30)]},
    )
    np.testing.assert_allclose(weights(trainer.model), weights(model), atol=1e-20)
    rates = trainer.history.epochs()["learning_rate"]
    assert rates.tolist() == pytest.approx([1e-30] * 2)


def test_sample_weights_and_class_weights_weigh_alike(frame):
    from pyspark.sql import functions as F

    weighted = frame.withColumn("w", F.when(F.col("label") == 1, 3.0).otherwise(1.0))
    common = {"num_workers": 1, "batch_size": 8, "communication_window": 4}
    one = trained("DOWNPOUR", build(), weighted, train={"sample_weight_col": "w"}, **common)
    other = trained("DOWNPOUR", build(), weighted, train={"class_weight": {1: 3.0}}, **common)
    plain = trained("DOWNPOUR", build(), weighted, **common)
    np.testing.assert_allclose(weights(one.model), weights(other.model), atol=1e-7)
    assert not np.allclose(weights(one.model), weights(plain.model), atol=1e-4)


def test_save_and_load_keep_model_history_and_run_together(frame, tmp_path):
    from distkeras_grid import load
    from distkeras_grid.errors import OutputExistsError

    trainer = trained("ADAG", build("adam"), frame, num_workers=2, batch_size=8)
    uri = (tmp_path / "run").as_uri()
    trainer.save(uri)
    saved = load(uri)
    np.testing.assert_array_equal(weights(saved.model), weights(trainer.model))
    assert saved.history.records == trainer.history.records
    assert saved.run["spec"]["algorithm"]["trainer"] == "ADAG"
    assert saved.run["spec"]["schedule"]["rows"] == ROWS
    json.dumps(saved.run)
    with pytest.raises(OutputExistsError, match="run"):
        trainer.save(uri)


def test_the_users_model_is_not_changed(frame):
    model = build("adam")
    before = weights(model)
    trained("ADAG", model, frame, num_workers=2, batch_size=8)
    np.testing.assert_array_equal(weights(model), before)


def test_frozen_weights_stay_and_do_not_travel(frame):
    model = build()
    model.layers[0].trainable = False
    model.compile("sgd", "sparse_categorical_crossentropy")
    frozen = model.layers[0].get_weights()[0]
    trainer = trained("DOWNPOUR", model, frame, num_workers=1, batch_size=8)
    np.testing.assert_array_equal(trainer.model.layers[0].get_weights()[0], frozen)
    sent = trainer.history.records[0].bytes_up
    travelling = 4 * (8 * CLASSES + CLASSES)
    assert travelling < sent < travelling + 600


def test_batch_norm_and_dropout(frame):
    import keras

    model = keras.Sequential(
        [
            keras.Input((WIDTH,)),
            keras.layers.Dense(8),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.2),
            keras.layers.Dense(CLASSES, activation="softmax"),
        ]
    )
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    trainer = trained("ADAG", model, frame, num_workers=2, batch_size=8, num_epoch=5)
    variance = trainer.model.layers[1].moving_variance.numpy()
    assert np.all(variance > 0)
    assert not np.allclose(variance, 1.0)


@pytest.mark.parametrize("name", ["DOWNPOUR", "AveragingTrainer"])
def test_recalibrated_statistics_are_those_of_all_rows(ordered, arrays, name):
    """The second normalization sees what the trained weights make of the rows."""
    import keras

    normalized = keras.layers.BatchNormalization
    model = keras.Sequential(
        [
            keras.Input((WIDTH,)),
            normalized(name="first"),
            keras.layers.Dense(8, "tanh"),
            normalized(name="second"),
            keras.layers.Dense(CLASSES, activation="softmax"),
        ]
    )
    model.compile(keras.optimizers.SGD(0.1), "sparse_categorical_crossentropy")
    trainer = trained(
        name,
        model,
        ordered,
        num_workers=2,
        batch_size=25,
        num_epoch=3,
        statistics="recalibrate",
        train={"shuffle": False},
    )
    found = trainer.model
    x, _ = arrays
    means, variances = [], []
    for batch in x.reshape(8, 25, WIDTH):
        scaled = found.get_layer("first")(batch, training=True)
        seen = np.asarray(found.layers[1](scaled), float)
        means.append(seen.mean(axis=0))
        variances.append(seen.var(axis=0))
    second = trainer.model.get_layer("second")
    np.testing.assert_allclose(second.moving_mean, np.mean(means, axis=0), rtol=0, atol=1e-5)
    np.testing.assert_allclose(second.moving_variance, np.mean(variances, axis=0), rtol=1e-4)
    assert trainer.run["statistics"] == "recalibrate"


def test_a_training_is_not_lost_when_its_statistics_cannot_be_measured(spark, frame, tmp_path):
    import shutil

    import keras

    class Remove(keras.callbacks.Callback):
        def on_train_end(self, logs=None):  # noqa: ARG002
            shutil.rmtree(tmp_path / "rows")

    frame.write.parquet(str(tmp_path / "rows"))
    model = keras.Sequential(
        [
            keras.Input((WIDTH,)),
            keras.layers.BatchNormalization(),
            keras.layers.Dense(CLASSES, activation="softmax"),
        ]
    )
    model.compile("sgd", "sparse_categorical_crossentropy")
    trainer = trained(
        "ADAG",
        model,
        str(tmp_path / "rows"),
        num_workers=2,
        statistics="recalibrate",
        train={"callbacks": [Remove()]},
    )
    assert trainer.model is not None
    assert np.abs(trainer.model.layers[0].moving_mean).max() > 0
    assert trainer.run["statistics"] == trainer.history.params["statistics"] == "average"


def test_averaged_states_come_with_the_steps_in_which_they_became_so(ordered):
    import keras

    class StopAtOnce(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):  # noqa: ARG002
            self.steps = int(self.model.optimizer.iterations.numpy())
            self.model.stop_training = True

    stop = StopAtOnce()
    model = build("adam")
    model.optimizer.build(model.trainable_variables)
    model.optimizer.iterations.assign(7)  # As of an earlier training.
    trainer = trained(
        "AveragingTrainer",
        model,
        ordered,
        num_workers=2,
        batch_size=10,
        num_epoch=50,
        communication_window=5,
        optimizer_state="average",
        train={"callbacks": [stop]},
    )
    assert stop.steps == 7 + 10
    assert int(trainer.model.optimizer.iterations.numpy()) == 7 + 10


# -- refusals, before work starts ---------------------------------------------------------------


def test_unknown_keywords_are_answered_with_the_nearest():
    from distkeras_grid import ADAG

    with pytest.raises(UnknownArgumentError, match="did you mean 'batch_size'"):
        ADAG(build(), batchsize=3)
    with pytest.raises(UnknownArgumentError, match="did you mean 'shuffle'"):
        ADAG(build()).train("nowhere", shufle=True)


def test_labels_outside_the_models_range(frame):
    from distkeras_grid import ADAG

    data = frame.selectExpr("features", "label + 1 as label")
    with pytest.raises(LabelError, match="1 to 3"):
        ADAG(build(), progress=False).train(data)


def test_a_model_without_loss(frame):
    import keras

    from distkeras_grid import ADAG

    model = keras.Sequential([keras.Input((WIDTH,)), keras.layers.Dense(CLASSES)])
    with pytest.raises(ConfigurationError, match="loss"):
        ADAG(model, progress=False).train(frame)


def test_rows_of_two_splits(frame):
    from distkeras_grid import ADAG

    data = frame.selectExpr("*", "if(label = 0, 'test', 'train') as split")
    with pytest.raises(SplitLeakError, match="split = 'train'"):
        ADAG(build(), progress=False).train(data)


def test_synchronous_trainers_refuse_too_few_slots(frame):
    from distkeras_grid import AveragingTrainer

    with pytest.raises(NotEnoughSlotsError, match="num_workers"):
        AveragingTrainer(build(), num_workers=3, progress=False).train(frame)


def test_more_workers_than_a_local_master_has_slots_are_refused_before_any_work(spark):
    """No further slots can come: before, the run waited for start_timeout."""
    from distkeras_grid import ADAG

    # Rows that cannot be counted: nobody looks at them.
    data = spark.range(4).selectExpr("array(cast(id as float)) as features", "id as label")
    data = data.where("raise_error('the data were read') is null")
    with pytest.raises(NotEnoughSlotsError):
        ADAG(build(), num_workers=3).train(data)


def test_a_loss_that_is_not_finite_ends_the_run_with_its_place(frame):
    data = frame.selectExpr("transform(features, f -> cast('NaN' as float)) as features", "label")
    with pytest.raises(NonFiniteLossError, match="epoch 1, window 0"):
        trained("DOWNPOUR", build(), data, num_workers=1)
