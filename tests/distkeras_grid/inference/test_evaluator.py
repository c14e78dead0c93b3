import math

import pytest

from distkeras_grid.errors import DataError, EmptyDataError, LabelError, SchemaError
from distkeras_grid.feeding.schema import Field
from distkeras_grid.inference.evaluator import AccuracyEvaluator

pytestmark = pytest.mark.spark

NAN = math.nan


def full(*values):
    return pytest.param(*values, marks=pytest.mark.full)


def frame(spark, predictions, labels, types=("array<float>", "int")):
    schema = f"prediction {types[0]}, label {types[1]}"
    return spark.createDataFrame(list(zip(predictions, labels, strict=True)), schema)


SCORES_AND_NUMBERS, NUMBERS = ("array<float>", "int"), ("double", "double")
ONE_HOT = ("array<double>", "array<int>")


@pytest.mark.parametrize(
    ("predictions", "labels", "types", "expected"),
    [
        ([[0.1, 0.9], [0.9, 0.1], [0.5, 0.5]], [1, 1, 0], SCORES_AND_NUMBERS, 2 / 3),
        full([[0.5], [0.51], [7.0]], [0, 1, 1], SCORES_AND_NUMBERS, 1.0),
        full([2, 0, 1], [2, 0, 0], ("int", "bigint"), 2 / 3),
        full([2.0, 0.4, 0.6], [2.0, 0.0, 1.0], NUMBERS, 1.0),
        ([[0.2, 0.8], [0.8, 0.2]], [[0, 1], [0, 1]], ONE_HOT, 0.5),
        full([[0.2, 0.8], [0.8, 0.2]], [[1], [0]], ONE_HOT, 1.0),
        full([True, False], [True, True], ("boolean", "boolean"), 0.5),
        full([[NAN, 1.0], [0.0, 1.0]], [0, 1], SCORES_AND_NUMBERS, 0.5),
        ([[NAN], [0.0]], [1, 0], SCORES_AND_NUMBERS, 0.5),
        full([NAN, 1.0], [0.0, 1.0], NUMBERS, 0.5),
    ],
)
def test_a_prediction_names_a_class(spark, predictions, labels, types, expected):
    result = AccuracyEvaluator().evaluate(frame(spark, predictions, labels, types))
    assert result == pytest.approx(expected)


def test_vectors_are_taken_as_arrays_and_names_with_dots_as_names(spark):
    from pyspark.ml.linalg import Vectors

    rows = [(Vectors.dense(0.2, 0.8), Vectors.sparse(2, [1], [1.0]))]
    df = spark.createDataFrame(rows, ["model.prediction", "true label"])
    assert AccuracyEvaluator("model.prediction", "true label").evaluate(df) == 1.0


def test_no_rows_are_an_error(spark):
    empty = frame(spark, [], [])
    for measure in (AccuracyEvaluator().evaluate, AccuracyEvaluator().report):
        with pytest.raises(EmptyDataError, match="no rows"):
            measure(empty)


@pytest.mark.parametrize(
    ("labels", "kind"),
    [
        ([1, None], "int"),
        ([1.0, 0.5], "double"),
        ([1.0, NAN], "double"),
        ([[0, 1], [1, 1]], "array<int>"),
        ([[0, 1], [0, 0]], "array<int>"),
        ([[0, 1], None], "array<int>"),
        ([[0, 1], []], "array<int>"),
        ([[1.0], [0.5]], "array<double>"),
    ],
)
def test_rows_whose_label_names_no_class_are_counted_in_the_error(spark, labels, kind):
    df = frame(spark, [[0.1, 0.9]] * 2, labels, ("array<float>", kind))
    with pytest.raises(LabelError, match="1 of 2 rows have no class in label column 'label'"):
        AccuracyEvaluator().evaluate(df)


@pytest.mark.parametrize("prediction", [None, [], [0.5, None]])
def test_rows_without_a_prediction_are_counted_in_the_error(spark, prediction):
    df = frame(spark, [[0.1, 0.9], prediction], [1, 1])
    with pytest.raises(LabelError, match="1 of 2 rows have no prediction in 'prediction'"):
        AccuracyEvaluator().evaluate(df)


def test_predicted_numbers_are_not_compared_as_classes(spark):
    """Scores without bounds for labels of 0 and 1 are."""
    with pytest.raises(LabelError, match=r"numbers that name no class.*pyspark\.ml"):
        AccuracyEvaluator().evaluate(frame(spark, [[3.7], [0.2]], [3, 0]))
    assert AccuracyEvaluator().evaluate(frame(spark, [[3.7], [-0.2]], [1, 0])) == 1


def test_a_missing_column_is_named_with_those_that_are_there(spark):
    with pytest.raises(SchemaError, match="no column 'score'"):
        AccuracyEvaluator("score").evaluate(frame(spark, [], []))


@pytest.mark.parametrize("kind", ["string", "array<string>", "binary"])
def test_a_column_that_holds_no_numbers_is_refused(spark, kind):
    with pytest.raises(SchemaError, match=f"'label' must hold numbers.*Received: {kind}"):
        AccuracyEvaluator().evaluate(frame(spark, [], [], ("int", kind)))


def tiles(spark, predictions, types="array<float>"):
    """Three sources of two groups; the second has no group."""
    rows = [("a.png", "s1", 0)] * 2 + [("b.png", None, 1)] * 3 + [("c.png", "s1", 0)]
    data = [(*row, prediction) for row, prediction in zip(rows, predictions, strict=True)]
    return spark.createDataFrame(
        data, f"source string, group string, label int, prediction {types}"
    )


SCORES = [[0.9, 0.1], [0.4, 0.6], [0.4, 0.6], [0.4, 0.6], [0.9, 0.1], [0.2, 0.8]]


def test_the_report_has_figures_of_rows_sources_and_groups(spark):
    df = tiles(spark, SCORES).withMetadata(
        "prediction", Field("prediction", (2,), "float32", classes=("dark", "light")).to_metadata()
    )
    report = AccuracyEvaluator().report(df)
    assert report.accuracy == AccuracyEvaluator().evaluate(df) == 0.5
    assert report.level("row").confusion.tolist() == [[1, 2], [1, 2]]
    assert [each.name for each in report.level("source").classes] == ["dark", "light"]
    # The means for class 0: 0.65 of a.png, 0.57 of b.png, and 0.2 of c.png.
    assert report.level("source").confusion.tolist() == [[1, 1], [1, 0]]
    assert report.level("group").count == 2
    # Ingested images are rows of their own, unless they have groups.
    ingested = df.selectExpr("*", "0 as item")
    grouped = AccuracyEvaluator().report(ingested)
    assert [level.name for level in grouped.levels] == ["row", "source", "group"]
    whole = AccuracyEvaluator().report(ingested.drop("group"))
    assert [level.name for level in whole.levels] == ["row"]


@pytest.mark.parametrize(
    ("predictions", "types", "accuracy"),
    [
        ([[0.1], [0.6], [0.6], [0.6], [0.1], [0.8]], "array<float>", 1 / 3),
        # A prediction that only names a class votes for it.
        ([0, 1, 1, 1, 0, 1], "int", 2 / 3),
        ([0.0, 0.6, 0.6, 0.6, 0.1, 0.8], "double", 2 / 3),
    ],
)
def test_predictions_of_every_kind_have_a_report(spark, predictions, types, accuracy):
    report = AccuracyEvaluator().report(tiles(spark, predictions, types))
    assert report.level("row").confusion.tolist() == [[1, 2], [1, 2]]
    assert report.level("source").accuracy.value == pytest.approx(accuracy)


def test_the_names_of_classes_are_those_of_the_labels_that_they_are_about(spark):
    named = Field("prediction", (2,), "float32", classes=("dark", "light")).to_metadata()
    other = (
        tiles(spark, SCORES).withMetadata("prediction", named).withColumnRenamed("label", "kind")
    )
    report = AccuracyEvaluator("prediction", "kind").report(other)
    assert [each.name for each in report.levels[0].classes] == ["0", "1"]
    given = AccuracyEvaluator("prediction", "kind").report(other, classes=("x", "y"))
    assert [each.name for each in given.levels[0].classes] == ["x", "y"]
    with pytest.raises(LabelError, match=r"0\.\.0"):
        AccuracyEvaluator("prediction", "kind").report(other, classes=("x",))


def test_the_report_refuses_what_has_no_place_in_it(spark):
    evaluator = AccuracyEvaluator()
    with pytest.raises(DataError, match="1 predictions hold NaN"):
        evaluator.report(frame(spark, [[NAN, 1.0], [0.1, 0.9]], [1, 1]))
    with pytest.raises(DataError, match="different lengths"):
        evaluator.report(frame(spark, [[0.1, 0.1, 0.8], [0.1, 0.9]], [1, 1]))
    with pytest.raises(SchemaError, match="'specimen'"):
        evaluator.report(frame(spark, [[0.1, 0.9]], [1]), by=["specimen"])


def test_one_job_makes_the_report(spark):
    seen = spark.sparkContext.accumulator(0)

    def look(batches):
        for batch in batches:
            seen.add(batch.num_rows)
            yield batch

    df = tiles(spark, SCORES)
    AccuracyEvaluator().report(df.mapInArrow(look, df.schema))
    assert seen.value == len(SCORES)
