"""The official Keras examples on two workers: they train, are saved, loaded, and predict."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.contracts.keras_examples import Entry

pytest.importorskip("tensorflow", reason="training steps of the examples call TensorFlow")
# Each trains two workers for seconds; `test_like_fit` trains one on what most models consist of.
pytestmark = [pytest.mark.tensorflow, pytest.mark.spark, pytest.mark.full]

from tests.contracts.keras_examples import EXAMPLES  # noqa: E402
from tests.contracts.test_like_fit import frame  # noqa: E402


@pytest.mark.parametrize("entry", EXAMPLES, ids=lambda entry: entry.build.__name__)
def test_an_official_example_trains_and_predicts(
    entry: Entry, spark: SparkSession, tmp_path: Path
) -> None:
    import keras

    from distkeras_grid import AveragingTrainer, ModelPredictor, load

    keras.utils.set_random_seed(0)
    example = entry.build()
    rows = frame(spark, example.columns)
    trainer = AveragingTrainer(
        example.model, num_workers=2, batch_size=16, num_epoch=2, progress=False, **example.trainer
    )
    trained = trainer.train(rows, seed=1, **example.train)
    moved = [
        np.any(np.asarray(after) != np.asarray(before))
        for after, before in zip(
            trained.trainable_variables, example.model.trainable_variables, strict=True
        )
    ]
    assert any(moved)
    assert all(np.all(np.isfinite(np.asarray(each))) for each in trained.trainable_variables)
    assert all(np.all(np.isfinite(each)) for each in trainer.history.history.values())
    trainer.save(str(tmp_path / "run"))
    objects = example.trainer.get("custom_objects", {})
    loaded = load(str(tmp_path / "run"), custom_objects=objects).model
    for ours, saved in zip(trained.weights, loaded.weights, strict=True):
        np.testing.assert_array_equal(ours, saved)
    predictor = ModelPredictor(loaded, "features", custom_objects=objects)
    row = predictor.predict(rows.limit(8)).select("prediction").first()
    assert np.all(np.isfinite(np.asarray(row["prediction"], "float64")))
