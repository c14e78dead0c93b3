"""What users hand over, on real Spark: losses, models, weights, paths, validation data."""

from __future__ import annotations

import json
from contextlib import ExitStack

import numpy as np
import pytest

from distkeras_grid.errors import (
    ConfigurationError,
    SchemaError,
    SplitLeakError,
    StorageError,
)
from distkeras_grid.progress import SILENT
from distkeras_grid.trainers import preflight
from distkeras_grid.trainers.base import training_data
from distkeras_grid.trainers.preparation import prepare
from distkeras_grid.trainers.run_status import run_progress

pytestmark = [pytest.mark.spark, pytest.mark.tensorflow]

ROWS, WIDTH, CLASSES = 60, 4, 3


@pytest.fixture(scope="module")
def frame(spark):
    import pyarrow as pa

    random = np.random.default_rng(7)
    x = random.normal(size=(ROWS, WIDTH)).astype(np.float32)
    y = (x @ random.normal(size=(WIDTH, CLASSES))).argmax(axis=1)
    table = pa.table({"features": pa.array(list(x)), "label": pa.array(y.astype(np.int32))})
    return spark.createDataFrame(table).cache()


def build(optimizer="sgd", **compiled):
    import keras

    keras.utils.set_random_seed(3)
    model = keras.Sequential(
        [keras.Input((WIDTH,)), keras.layers.Dense(CLASSES, activation="softmax")]
    )
    settings = {"loss": "sparse_categorical_crossentropy", **compiled}
    model.compile(optimizer=optimizer, **settings)
    return model


def trained(name, model, data, *, train=None, **arguments):
    import distkeras_grid

    arguments = {"num_workers": 1, "batch_size": 8, "progress": False, **arguments}
    trainer = getattr(distkeras_grid, name)(model, **arguments)
    trainer.train(data, **{"seed": 5, **(train or {})})
    return trainer


@pytest.fixture(scope="module")
def net_class():
    """A class of the user's, as in a notebook: Keras does not know the shapes of its models."""
    import keras

    class Net(keras.Model):
        def __init__(self, **options):
            super().__init__(**options)
            self.hidden = keras.layers.Dense(8, activation="tanh")
            self.out = keras.layers.Dense(CLASSES, activation="softmax")

        def call(self, x):
            return self.out(self.hidden(x))

    return Net


# -- models and losses of the user's own ---------------------------------------------------------


def test_models_that_cannot_be_trained_are_refused_by_name(frame, net_class):
    import keras

    unnamed = net_class(name="unnamed")
    unnamed.compile("sgd", "mse")
    with pytest.raises(ConfigurationError, match=r"'Net'.*custom_objects"):
        trained("ADAG", unnamed, frame)
    ends = [keras.Input((WIDTH,), name=name) for name in ("left", "right")]
    double = keras.Model(ends, keras.layers.Dense(1)(keras.layers.Add()(ends)), name="double")
    double.compile("sgd", "mse")
    with pytest.raises(ConfigurationError, match="'right'"):
        trained("ADAG", double, frame)
    with pytest.raises(SchemaError, match=r"\(3,\)"):
        trained("ADAG", build(), frame.selectExpr("slice(features, 1, 3) as features", "label"))


# -- refused before any work ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"jit": "fast"}, "jit must be"),
        ({"train": {"seed": -1}}, "seed must be"),
        ({"train": {"class_weight": {1: "2"}}}, "'2' for class 1"),
        ({"train": {"validation_data": "/nowhere/at/all"}}, "/nowhere/at/all"),
    ],
)
def test_mistakes_are_found_before_spark_has_work(frame, monkeypatch, arguments, match):
    def too_late(*_, **__):
        raise AssertionError("a job was run first")

    monkeypatch.setattr(preflight, "check_executors", too_late)
    with pytest.raises((ConfigurationError, StorageError), match=match):
        trained("ADAG", build(), frame, **arguments)


def test_a_path_on_a_host_that_does_not_exist():
    with pytest.raises(StorageError, match=r"hdfs://no-such-host\.invalid:1/x"):
        trained("ADAG", build(), "hdfs://no-such-host.invalid:1/x")


@pytest.mark.full
def test_validation_data_are_checked_before_the_run(frame, spark, tmp_path):
    path = str(tmp_path / "tiles")
    for split in ("train", "test"):
        frame.write.parquet(f"{path}/split={split}")
    train = spark.read.parquet(path).where("split = 'train'")

    def validated(data):
        return trained("ADAG", build(), train, train={"validation_data": data})

    with pytest.raises(SplitLeakError, match=r"^validation_data: "):
        validated(path)
    with pytest.raises(SchemaError, match=r"^validation_data: .*'features'"):
        validated(frame.selectExpr("if(label = 2, null, features) as features", "label"))
    assert "val_loss" in validated(f"{path}/split=test").history.history


# -- numbers -------------------------------------------------------------------------------------


def test_arguments_may_be_numbers_of_numpy(frame, tmp_path):
    trainer = trained(
        "AEASGD",
        build(),
        frame,
        alpha=np.float32(0.5),
        learning_rate=np.float32(0.25),
        worker_optimizer="sgd",
        train={"seed": np.int64(3), "class_weight": {np.int64(1): np.float32(2.0)}},
    )
    trainer.save((tmp_path / "run").as_uri())
    written = json.loads((tmp_path / "run" / "run.json").read_text())
    assert written["spec"]["algorithm"]["arguments"] == {"alpha": 0.5, "rho": None}
    assert written["spec"]["schedule"]["seed"] == 3


def prepared(name, frame, **arguments):
    import distkeras_grid

    trainer = getattr(distkeras_grid, name)(build(), batch_size=8, progress=False, **arguments)
    data = training_data(frame, shuffle=True, seed=5)
    return prepare(trainer.checked(), data, (), ExitStack(), run_progress(to=SILENT))


def test_what_a_run_asks_of_the_network_is_that_of_its_workers(frame):
    megabytes = 4 * (WIDTH * CLASSES + CLASSES) / 1e6
    single = prepared("SingleTrainer", frame)
    assert f"({megabytes:.3g} MB to the driver)" in single.notes[0]
    two = prepared("ADAG", frame, num_workers=2)
    assert f"({megabytes:.3g} MB each way)" in two.notes[0]
