"""What users hand over, on real Spark: models, arguments, paths, validation data."""

from __future__ import annotations

import pytest

from distkeras_grid.errors import (
    ConfigurationError,
    SchemaError,
    SplitLeakError,
    StorageError,
)
from distkeras_grid.trainers import preflight
from tests.distkeras_grid.trainers.small import CLASSES, WIDTH, build, trained

pytestmark = [pytest.mark.spark, pytest.mark.tensorflow]


def test_models_that_cannot_be_trained_are_refused_by_name(frame):
    import keras

    class Net(keras.Model):
        """As in a notebook: Keras does not know the shapes of its models."""

        def __init__(self, **options):
            super().__init__(**options)
            self.out = keras.layers.Dense(CLASSES, activation="softmax")

        def call(self, x):
            return self.out(x)

    unnamed = Net(name="unnamed")
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
        call = {"validation_data": data}
        return trained("ADAG", build(), train, num_workers=1, batch_size=8, train=call)

    with pytest.raises(SplitLeakError, match=r"^validation_data: "):
        validated(path)
    with pytest.raises(SchemaError, match=r"^validation_data: .*'features'"):
        validated(frame.selectExpr("if(label = 2, null, features) as features", "label"))
    assert "val_loss" in validated(f"{path}/split=test").history.history
