"""Predicted numbers on real Spark."""

from __future__ import annotations

import math

import numpy as np
import pytest

from distkeras_grid import AccuracyEvaluator, RegressionEvaluator
from distkeras_grid.errors import (
    ConfigurationError,
    DataError,
    EmptyDataError,
    LabelError,
    SchemaError,
)

pytestmark = pytest.mark.spark

RNG = np.random.default_rng(2)
LABELS = RNG.normal(5, 2, 60).tolist()
SAID = [float(np.float32(label + RNG.normal(0, 0.5))) for label in LABELS]


def frame(spark, said, labels, types="prediction array<float>, diameter double"):
    return spark.createDataFrame(list(zip(said, labels, strict=True)), types)


def test_the_figures_are_those_of_spark_ml(spark):
    from pyspark.ml.evaluation import RegressionEvaluator as OfSpark

    numbers = frame(spark, SAID, LABELS, "prediction double, diameter double")
    arrays = frame(spark, [[said] for said in SAID], LABELS)
    for metric in ("mae", "rmse", "r2"):
        theirs = OfSpark(labelCol="diameter", metricName=metric).evaluate(numbers)
        for df in (numbers, arrays):
            ours = RegressionEvaluator(label_col="diameter", metric=metric).evaluate(df)
            assert ours == pytest.approx(theirs, rel=1e-9)
    (rows,) = RegressionEvaluator(label_col="diameter").report(numbers).levels
    assert rows.count == 60
    assert rows.rmse.low < rows.rmse.value < rows.rmse.high < 1.3 * rows.rmse.value


def test_images_and_groups_have_figures(spark):
    rows = [
        ([said], label, f"{i % 12}.png", f"s{i % 4}")
        for i, (said, label) in enumerate(zip(SAID, LABELS, strict=True))
    ]
    df = spark.createDataFrame(
        rows, "prediction array<float>, label double, source string, group string"
    )
    report = RegressionEvaluator().report(df)
    assert [(level.name, level.count) for level in report.levels] == [
        ("row", 60),
        ("source", 12),
        ("group", 4),
    ]
    errors = [np.mean([SAID[i] - LABELS[i] for i in range(g, 60, 4)]) for g in range(4)]
    assert report.level("group").mae.value == pytest.approx(np.mean(np.abs(errors)))


def test_what_is_no_number_is_refused(spark):
    evaluator = RegressionEvaluator("prediction", "diameter")
    with pytest.raises(EmptyDataError):
        evaluator.evaluate(frame(spark, [], []))
    with pytest.raises(LabelError, match="1 rows have no single number in column 'diameter'"):
        evaluator.evaluate(frame(spark, [[1.0]] * 2, [1.0, None]))
    with pytest.raises(LabelError, match=r"'prediction'.*several"):
        evaluator.evaluate(frame(spark, [[1.0], [1.0, 2.0]], [1.0, 2.0]))
    with pytest.raises(DataError, match="1 rows have NaN"):
        evaluator.evaluate(frame(spark, [[1.0], [math.nan]], [1.0, 2.0]))
    with pytest.raises(SchemaError, match="'label'"):
        RegressionEvaluator().evaluate(frame(spark, [[1.0]], [1.0]))
    with pytest.raises(ConfigurationError, match="mse"):
        RegressionEvaluator(metric="mse")


def test_classes_are_not_asked_of_numbers(spark):
    df = frame(spark, [[0.3]] * 2, [3.5, 2.5])
    evaluator = AccuracyEvaluator("prediction", "diameter")
    for measure in (evaluator.evaluate, evaluator.report):
        with pytest.raises(LabelError, match=r"numbers with fractions\. RegressionEvaluator"):
            measure(df)


@pytest.mark.parametrize(
    ("said", "label", "expected"),
    [(3.7, 3.0, True), (3.7, 1.0, False), (0.4, 3.0, False), (3.0, 2.0, False), (-0.5, 0.5, True)],
)
def test_scores_without_bounds_are_not_taken_for_a_regression(spark, said, label, expected):
    df = frame(spark, [[said]], [label])
    assert AccuracyEvaluator("prediction", "diameter").count(df, ()).is_of_numbers is expected
