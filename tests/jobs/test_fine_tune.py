"""A frozen net of keras.applications with a new head, from images to a model."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import numpy as np
import pytest

from distkeras_grid.errors import ConfigurationError
from distkeras_grid.feeding.schema import Field
from distkeras_grid.trainers.saved_run import load

pytestmark = [pytest.mark.spark, pytest.mark.tensorflow]

SIDE, CLASSES, ALPHA = 32, 3, 0.35
FIELD = Field("image", (SIDE, SIDE, 1), scale=1 / 255, classes=("lying", "standing", "plain"))
HEAD = (1280 + 1) * CLASSES
# Of what stands around the vector.
MESSAGE_BYTES = 1000


def build_base():
    import keras

    keras.utils.set_random_seed(4)
    base = keras.applications.MobileNetV2(
        weights=None, include_top=False, pooling="avg", alpha=ALPHA, input_shape=(SIDE, SIDE, 3)
    )
    # Statistics as a trained net has them: with new ones hardly anything reaches its end.
    for layer in base.layers:
        if isinstance(layer, keras.layers.BatchNormalization):
            layer.momentum = 0.0
    rng = np.random.default_rng(1)
    seen = rng.uniform(-1, 1, (16, 1, 1, 3)) + rng.normal(size=(16, SIDE, SIDE, 3)) * 0.3
    base(seen.astype(np.float32), training=True)
    return base


def draw(number, rng):
    """Stripes one way, the other, or none."""
    stripes = np.zeros((SIDE, SIDE), np.uint8)
    odd = (np.arange(SIDE) // 4) % 2 == 0
    stripes[(odd, (slice(None), odd), slice(None))[number % 3]] = 100 if number % 3 == 2 else 200
    return stripes + rng.integers(0, 40, (SIDE, SIDE), dtype=np.uint8)


@pytest.fixture(scope="module")
def images(spark, tmp_path_factory):
    """96 images to train with, 48 to validate with."""
    from pyspark.sql import types

    rng = np.random.default_rng(0)
    rows = []
    for number in range(144):
        split = "train" if number < 96 else "validation"
        rows.append((bytearray(draw(number, rng).tobytes()), number % 3, split))
    schema = types.StructType(
        [
            types.StructField("image", types.BinaryType(), metadata=FIELD.to_metadata()),
            types.StructField("label", types.IntegerType()),
            types.StructField("split", types.StringType()),
        ]
    )
    folder = str(tmp_path_factory.mktemp("data") / "set")
    spark.createDataFrame(rows, schema).write.partitionBy("split").parquet(folder)
    return folder


@pytest.mark.full
def test_only_the_head_travels_and_learns(project, images, tmp_path):
    base = build_base()
    base.save_weights(tmp_path / "base.weights.h5")
    flags = (
        *("--data", images, "--net", "MobileNetV2", "--net-set", f"alpha={ALPHA}"),
        *("--weights", tmp_path / "base.weights.h5", "--output", tmp_path / "run"),
        *("--trainer", "AveragingTrainer", "--master", "local[2,4]", "--workers", 2),
        *("--epochs", 10, "--batch-size", 8, "--seed", 1, "--set", "worker_optimizer=adam"),
        *("--set", "learning_rate=0.01", "--set", "communication_window=2"),
    )
    ended = subprocess.run(
        [sys.executable, project / "jobs" / "fine_tune.py", *map(str, flags)],
        capture_output=True,
        text=True,
        check=False,
        timeout=400,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert f"{HEAD} of them train: {HEAD * 4 / 1e3:.1f} kB an exchange" in ended.stdout
    saved = load(str(tmp_path / "run"))
    records = saved.history.records
    assert {record.worker for record in records} == {0, 1}
    for record in records:
        assert 0 < record.bytes_up - 4 * HEAD < MESSAGE_BYTES
        assert 0 < record.bytes_down - 4 * HEAD < MESSAGE_BYTES
    layout = saved.run["spec"]["layout"]
    assert [layout[size] for size in ("trainable_size", "statistics_size")] == [HEAD, 0]
    (frozen,) = [layer for layer in saved.model.layers if layer.name == base.name]
    for found, given in zip(frozen.weights, base.weights, strict=True):
        np.testing.assert_array_equal(np.asarray(found), np.asarray(given))
    assert max(saved.history.history["val_accuracy"][-3:]) > 0.6, "chance is 0.33"


@pytest.fixture(scope="module")
def job(project):
    spec = importlib.util.spec_from_file_location("fine_tune", project / "jobs" / "fine_tune.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def parsed(job, *flags):
    given = ("--data", "tiles", "--output", "run", "--weights", "random", *flags)
    return job.build_parser().parse_args(given)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--net", "MobileNetV9"), "keras.applications has no net 'MobileNetV9'"),
        (("--net", "MobileNetV2", "--net-set", "alfa=2"), "Keras cannot build MobileNetV2 of"),
    ],
)
def test_a_net_that_keras_cannot_build_is_told(job, flags, message):
    with pytest.raises(ConfigurationError, match=message):
        job.load_base(parsed(job, *flags), None, (SIDE, SIDE, 3))


def test_images_without_classes_are_refused(job):
    flags = parsed(job, "--net", "MobileNetV2")
    with pytest.raises(ConfigurationError, match=r"'image' must hold images of 1 or 3 channels"):
        job.build_model(flags, None, Field("image", (SIDE, SIDE, 1)))


@pytest.mark.parametrize(
    "features",
    [
        Field("image", (SIDE, SIDE, 1), "float32", classes=("a", "b")),
        Field("image", (SIDE, SIDE, 1), scale=1 / 128, offset=-1, classes=("a", "b")),
    ],
)
def test_values_that_are_no_pixels_are_refused(job, features):
    flags = parsed(job, "--net", "MobileNetV2")
    with pytest.raises(ConfigurationError, match="must hold bytes that the model sees from 0 to 1"):
        job.build_model(flags, None, features)


@pytest.mark.parametrize(("pixels", "least", "most"), [("signed", -1, 1), ("bytes", 0, 255)])
def test_the_net_sees_the_pixels_that_it_was_trained_on(job, pixels, least, most):
    import keras

    flags = parsed(job, "--net", "MobileNetV2", "--net-set", "alpha=0.35", "--pixels", pixels)
    model = job.build_model(flags, None, FIELD)
    seen = keras.Model(model.inputs[0], model.layers[-3].output)
    shown = np.stack([np.zeros((SIDE, SIDE, 1)), np.ones((SIDE, SIDE, 1))]).astype(np.float32)
    found = np.asarray(seen(shown))
    assert found.shape == (2, SIDE, SIDE, 3)
    assert (found[0].min(), found[1].max()) == (least, most)
    assert not model.layers[-2].trainable
