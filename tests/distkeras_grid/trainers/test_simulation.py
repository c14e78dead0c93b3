"""``Trainer.simulate``: real models, no cluster."""

from __future__ import annotations

import numpy as np
import pytest

from distkeras_grid.errors import (
    ConfigurationError,
    DataError,
    LabelError,
    SchemaError,
)
from distkeras_grid.rules import DeepGradientCompression
from distkeras_grid.simulation.cluster import Cluster, Outage
from distkeras_grid.trainers import TRAINERS
from tests.distkeras_grid.trainers.small import CLASSES, WIDTH, build, weights

pytestmark = pytest.mark.tensorflow

ROWS = 120


@pytest.fixture(scope="module")
def arrays(arrays):
    return tuple(each[:ROWS] for each in arrays)


def trainer(name, model=None, **arguments):
    import distkeras_grid

    arguments = {"progress": False, "batch_size": 8, "jit": False, **arguments}
    return getattr(distkeras_grid, name)(model or build(), **arguments)


def simulated(name, data, workers=3, *, model=None, call=None, **arguments):
    call = {"seed": 5, "cluster": Cluster(workers, batch_seconds=0.25), **(call or {})}
    return trainer(name, model, **arguments).simulate(data, **call)


# What a smaller choice in make test shows as well.
def full(*values):
    return pytest.param(*values, marks=pytest.mark.full)


@pytest.mark.parametrize("optimizer", [full("sgd"), "adam"])
def test_S1_one_worker_is_fit(arrays, optimizer):
    expected = build(optimizer)
    expected.fit(*arrays, batch_size=8, epochs=3, shuffle=False, verbose=0)
    found = simulated(
        "SingleTrainer", arrays, 1, model=build(optimizer), num_epoch=3, call={"shuffle": False}
    )
    np.testing.assert_array_equal(weights(found.model), weights(expected))
    assert found.history.training_seconds() == 3 * 15 * 0.25
    assert sum(record.steps for record in found.history.records) == 3 * 15


# At any time, in rounds of weights, and in rounds of steps. tests/invariants has the rules of all.
KINDS = ("DOWNPOUR", "AveragingTrainer", "SynchronousSGD")


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        *((name, {}) for name in KINDS),
        *(
            full(name, {})
            for name in sorted(set(TRAINERS) - {"SingleTrainer", "EnsembleTrainer", *KINDS})
        ),
        full("DOWNPOUR", {"server_optimizer": "adagrad", "server_learning_rate": 0.2}),
        full("ADAG", {"compression": "bfloat16"}),
        full("ADAG", {"compression": DeepGradientCompression(0.9, warm_up_epochs=1)}),
        full("SynchronousSGD", {"compression": DeepGradientCompression(0.9, momentum=0.5)}),
    ],
)
def test_every_trainer_folds_every_sample_and_learns(arrays, name, arguments):
    before = build().evaluate(*arrays, verbose=0)[0]
    found = simulated(
        name, arrays, 2, worker_optimizer="sgd", learning_rate=0.2, num_epoch=9, **arguments
    )
    assert found.history.samples == 9 * ROWS
    assert {record.worker for record in found.history.records} == {0, 1}
    assert found.model.evaluate(*arrays, verbose=0)[0] < 0.8 * before


@pytest.mark.parametrize("optimizer", [full("sgd"), "adam"])
def test_Q5_workers_that_step_by_the_mean_gradient_are_fit_with_all_their_batches(
    arrays, optimizer
):
    """Whatever the optimizer, and though one of them is late and another is lost for a while."""
    trouble = Cluster(
        3, batch_seconds=0.25, late={1: 0.4}, outages=[Outage(2, at=1.3, seconds=0.8)]
    )
    found = simulated(
        "SynchronousSGD",
        arrays,
        num_epoch=2,
        model=build(optimizer),
        call={"shuffle": False, "cluster": trouble},
    )
    order = np.arange(ROWS).reshape(3, 5, 8).swapaxes(0, 1).ravel()
    expected = build(optimizer)
    expected.fit(
        *(array[order] for array in arrays), batch_size=24, epochs=2, shuffle=False, verbose=0
    )
    assert found.lost == 1
    np.testing.assert_allclose(weights(found.model), weights(expected), rtol=1e-4, atol=1e-5)


def test_the_model_of_a_run_with_a_lost_worker_keeps_the_users_own_schedule(arrays, tmp_path):
    """Engines follow theirs from a later step on; Keras alone reads what is returned."""
    import keras

    schedule = keras.optimizers.schedules.CosineDecay(0.1, 30)
    trouble = Cluster(3, batch_seconds=0.25, outages=[Outage(2, at=1.3, seconds=0.8)])
    found = simulated(
        "ADAG",
        arrays,
        num_epoch=2,
        model=build(keras.optimizers.Adam(schedule)),
        call={"cluster": trouble},
    )
    found.model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert found.lost == 1
    assert loaded.optimizer.get_config()["learning_rate"]["class_name"] == "CosineDecay"


def test_the_same_seed_and_cluster_give_the_same_run(arrays):
    runs = [
        simulated("ADAG", arrays, num_epoch=2, model=build("adam"), call={"seed": seed})
        for seed in (5, 5, 6)
    ]
    np.testing.assert_array_equal(weights(runs[0].model), weights(runs[1].model))
    assert [*runs[0].history.lines()] == [*runs[1].history.lines()]
    assert (weights(runs[0].model) != weights(runs[2].model)).any()


def test_all_rows_are_dealt_and_each_epoch_validated(arrays):
    found = simulated("DOWNPOUR", arrays, 7, num_epoch=2, call={"validation_data": arrays})
    assert found.history.samples == 2 * ROWS
    assert len(found.history.history["val_accuracy"]) == 2
    loss = found.model.evaluate(*arrays, verbose=0)[0]
    assert found.history.history["val_loss"][-1] == pytest.approx(loss, rel=1e-5)


def test_a_batch_is_timed_where_the_cluster_does_not_say(arrays):
    found = simulated("ADAG", arrays, call={"cluster": Cluster(2)})
    assert found.cluster.batch_seconds > 0
    steps = sum(record.steps for record in found.history.records)
    computed = sum(found.computing_seconds)
    assert computed == pytest.approx(steps * found.cluster.batch_seconds)


def test_the_trainer_keeps_what_it_trained_before(arrays):
    each = trainer("ADAG")
    each.simulate(arrays, Cluster(2, batch_seconds=1.0))
    assert each.model is None
    assert not each.history.records


@pytest.mark.parametrize(
    ("given", "received"),
    [
        (np.array([-1.0, *[1.0] * (ROWS - 1)]), f"1 of {ROWS} null"),
        (np.full(ROWS, np.nan), f"{ROWS} of {ROWS} null"),
        (np.ones((ROWS, 2)), r"shape \(\d+, 2\)"),
    ],
)
def test_weights_that_are_none(arrays, given, received):
    with pytest.raises(DataError, match=f"Sample weights are one finite .* Received: .*{received}"):
        simulated("ADAG", (*arrays, given))


def test_the_number_of_workers_is_said_once(arrays):
    with pytest.raises(ConfigurationError, match="3 workers and num_workers=2"):
        simulated("ADAG", arrays, num_workers=2)
    assert simulated("ADAG", arrays, num_workers=3).history.num_updates


@pytest.mark.parametrize(
    ("data", "error", "match"),
    [
        (lambda x, y: (x, y[:-1]), DataError, r"lengths: \[120, 119\]"),
        (lambda x, _: (x,), DataError, "Received: 1 items"),
        (lambda x, y: (x[:0], y[:0]), DataError, "at least 1"),
        (lambda x, y: (x.astype(str), y), DataError, "Arrays are of one of uint8"),
        (lambda x, y: (x[:, :5], y), SchemaError, r"shape \(5,\)"),
        (lambda x, y: (x, y + 1), LabelError, "from 1 to 3"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(arrays, data, error, match):
    with pytest.raises(error, match=match):
        simulated("ADAG", data(*arrays))


def test_validation_data_are_named_where_they_do_not_fit(arrays):
    x, y = arrays
    with pytest.raises(LabelError, match="validation_data: Labels"):
        simulated("ADAG", arrays, call={"validation_data": (x, y + 1)})


def test_members_that_never_meet_are_not_simulated(arrays):
    with pytest.raises(ConfigurationError, match="EnsembleTrainer's workers"):
        simulated("EnsembleTrainer", arrays)


def test_a_simulated_run_says_what_a_real_one_says_and_its_time(arrays, capsys):
    """With 120 rows each worker has 5 batches, which is too few for any window."""
    simulated("DOWNPOUR", arrays, model=build("adam"), progress=True)
    said = capsys.readouterr().err
    assert (
        "communication_window is 1, not 5, because an epoch of a worker has only 5 batches" in said
    )
    assert "commit_scale 0.333" in said
    simulated("ADAG", arrays, progress=True)
    said = capsys.readouterr().err
    told = "in simulated time, 250 ms a batch: ADAG: 120 rows, 3 workers, batch 8 each, 24 together"
    assert told in said
    assert "(0.000332 MB each way)" in said
    assert "simulated time: epoch 1/1 ended after 1.2 s" in said
    simulated("AveragingTrainer", arrays, quorum=0.8, progress=True)
    assert "a round waits for 3 of 3 workers (quorum 0.8)" in capsys.readouterr().err


def test_a_step_that_applies_nothing_is_refused_also_where_its_time_is_given(arrays):
    import keras

    class Idle(keras.Sequential):
        def train_step(self, data):
            x, y = data
            return {"loss": self.compute_loss(x=x, y=y, y_pred=self(x))}

    net = Idle([keras.Input((WIDTH,)), keras.layers.Dense(CLASSES)])
    net.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    with pytest.raises(ConfigurationError, match="train_step of Idle applied nothing"):
        simulated("SynchronousSGD", arrays, model=net, custom_objects={"Idle": Idle})


@pytest.mark.parametrize("name", ["ADAG", full("AveragingTrainer"), full("AEASGD")])
def test_frozen_weights_do_not_travel_and_stay_as_they_are(arrays, name):
    """Normalization in a frozen net keeps its statistics; one that trains sends them."""
    import keras

    keras.utils.set_random_seed(3)
    normalized = keras.layers.BatchNormalization
    base = keras.Sequential(
        [keras.Input((WIDTH,)), keras.layers.Dense(50, "tanh"), normalized()], name="base"
    )
    base.trainable = False
    model = keras.Sequential(
        [keras.Input((WIDTH,)), base, normalized(), keras.layers.Dense(CLASSES, "softmax")]
    )
    model.compile(keras.optimizers.Adam(0.01), "sparse_categorical_crossentropy")
    before = model.evaluate(*arrays, verbose=0)
    found = simulated(name, arrays, 2, model=model, num_epoch=6, communication_window=2)
    changing = 2 * 50 + 2 * 50 + 51 * CLASSES
    for record in found.history.records:
        assert 0 < record.bytes_up - 4 * changing < 600
        assert 0 < record.bytes_down - 4 * changing < 600
    trained = found.model.get_layer("base").variables
    for mine, given in zip(trained, base.variables, strict=True):
        np.testing.assert_array_equal(np.asarray(mine), np.asarray(given))
    assert found.model.evaluate(*arrays, verbose=0) < 0.9 * before


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("GEM", {}),
        ("EAMSGD", {}),
        ("AEASGD", {"compression": "bfloat16"}),
        ("SynchronousSGD", {"compression": DeepGradientCompression(momentum=0.9)}),
    ],
)
def test_what_a_rule_cannot_work_with_is_refused(arrays, name, arguments):
    """Plain gradients under Adam, weights that would be compressed, momentum beside Adam's own."""
    with pytest.raises(ConfigurationError):
        simulated(name, arrays, model=build("adam"), **arguments)


@pytest.mark.spark
def test_a_dataframe_is_collected_and_scaled(spark, arrays):
    import pyarrow as pa

    from distkeras_grid import Field

    x, y = arrays
    table = pa.table({"features": pa.array(list(x)), "label": pa.array(y.astype(np.int32))})
    frame = spark.createDataFrame(table).coalesce(1)
    field = Field("features", (WIDTH,), dtype="float32", scale=0.5, offset=1.0)
    runs = [
        simulated(
            "ADAG",
            data,
            call={"shuffle": False, "validation_data": data},
            features_col=field,
        )
        for data in (frame, (x * np.float32(0.5) + np.float32(1), y))
    ]
    np.testing.assert_array_equal(weights(runs[0].model), weights(runs[1].model))
    assert runs[0].history.history == runs[1].history.history
