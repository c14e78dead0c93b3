"""The trainer `PlacedLayers`: models that it refuses, and runs with Spark's tasks."""

from __future__ import annotations

import numpy as np
import pytest

from distkeras_grid.errors import ConfigurationError
from distkeras_grid.model_parallel.placed_layers import PlacedLayers
from tests.distkeras_grid.model_parallel.helpers import check_trained_as_fit

pytestmark = pytest.mark.tensorflow


def net(*layers):
    import keras

    keras.utils.set_random_seed(3)
    middle = layers or (keras.layers.Dense(6, activation="tanh", name="two"),)
    return keras.Sequential(
        [
            keras.Input((5,)),
            keras.layers.Dense(8, activation="relu", name="one"),
            *middle,
            keras.layers.Dense(3, activation="softmax", name="three"),
        ]
    )


@pytest.mark.spark
def test_models_and_optimizers_that_cannot_be_in_stages_are_refused(spark):
    import keras

    rows = spark.createDataFrame([([0.0] * 5, 1)], "features array<float>, label int")
    loss = "sparse_categorical_crossentropy"
    with pytest.raises(ConfigurationError, match="Batch normalization"):
        PlacedLayers(net(keras.layers.BatchNormalization()), "sgd", loss, num_workers=2).train(rows)
    given = keras.Input((5,))
    around = keras.Model(given, keras.layers.Add()([given, keras.layers.Dense(5)(given)]))
    with pytest.raises(ConfigurationError, match="cut after: nowhere"):
        PlacedLayers(around, "sgd", "mse", num_workers=2).train(rows)
    with pytest.raises(ConfigurationError, match="cut after: one, two"):
        PlacedLayers(net(), "sgd", loss, cuts=["three"], progress=False).train(rows)
    clipping = keras.optimizers.SGD(0.1, global_clipnorm=1.0)
    with pytest.raises(ConfigurationError, match="global norm"):
        PlacedLayers(net(), clipping, loss, num_workers=2, progress=False).train(rows)


@pytest.mark.full
@pytest.mark.spark
@pytest.mark.parametrize("settings", [{"num_workers": 2, "micro_batches": 3}, {"cuts": ["two"]}])
def test_stages_on_workers_are_trained_as_fit_trains_the_whole(spark, settings):
    params = check_trained_as_fit(spark, PlacedLayers, net(), **settings).history.params
    assert params["cuts"] == settings.get("cuts", params["cuts"])


@pytest.mark.full
@pytest.mark.spark
def test_an_interrupted_run_goes_on_bit_for_bit_with_the_stages_with_which_it_began(
    spark, tmp_path
):
    import keras

    random = np.random.default_rng(2)
    table = [(row.tolist(), n % 3) for n, row in enumerate(random.random((90, 5)))]
    rows = spark.createDataFrame(table, "x array<float>, label int").coalesce(1)

    def stop(epoch, _):
        raise KeyboardInterrupt

    def train(folder, act, **options):
        trainer = PlacedLayers(
            net(),
            "adam",
            "sparse_categorical_crossentropy",
            batch_size=16,
            micro_batches=3,
            num_epoch=3,
            communication_window=2,
            features_col="x",
            progress=False,
            checkpoint_dir=str(folder),
            resume="auto",
            **options,
        )
        callback = keras.callbacks.LambdaCallback(on_epoch_end=act)
        return trainer, trainer.train(rows, seed=1, callbacks=[callback])

    calm, expected = train(tmp_path / "calm", lambda *_: None, cuts=["one"])
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "runs", stop, num_workers=2)
    with pytest.raises(
        ConfigurationError, match=r"Checkpoint: cuts=\['one'\]. Received: cuts=\[\]"
    ):
        train(tmp_path / "runs", stop, num_workers=1)
    trainer, model = train(tmp_path / "runs", lambda *_: None)
    assert trainer.history.samples == calm.history.samples == 90 * 3
    assert [each["restarted"] for each in trainer.run["resumed"]] == ["driver"]
    for one, other in zip(expected.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)
