"""Measures how good the predictions in a DataFrame are, with one Spark job."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from distkeras_grid.errors import EmptyDataError, LabelError
from distkeras_grid.evaluation.classification import Combine, Evaluation, evaluate_tallies
from distkeras_grid.inference.class_expressions import (
    check_columns,
    predicted_class,
    single_number,
    true_class,
)
from distkeras_grid.inference.vote_counts import VoteCounts, class_names, has_scores, tallies_of
from distkeras_grid.metrics import confusion_from_counts
from distkeras_grid.spark.dataframes import GROUP_COLUMN, SOURCE_COLUMN

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: Columns of a data set of tiles that name the units of a row, the smallest unit first.
UNITS = (SOURCE_COLUMN, GROUP_COLUMN)
# The column that only ingested images have: the place of an image in its file.
WHOLE_IMAGES = "item"
# The label column for which the metadata of a data set give the class names.
NAMED_LABEL = "label"


class AccuracyEvaluator:
    """Measures how well predictions name the classes of labels.

    Parameters
    ----------
    prediction_col : str, default "prediction"
        Name of the column of predictions. In arrays of numbers and Spark ML vectors, the largest
        number gives the class; a single number above 0.5 means class 1. In columns of numbers,
        whole numbers are classes, and other numbers above 0.5 mean class 1.
    label_col : str, default "label"
        Name of the column of labels: whole numbers, one-hot arrays or one-hot vectors.

    Examples
    --------
    >>> evaluator = AccuracyEvaluator("prediction", "label")
    >>> evaluator.evaluate(predictions)  # doctest: +SKIP
    0.9375
    >>> print(evaluator.report(predictions))  # doctest: +SKIP
    accuracy 0.9375 on 1400 rows
    ...
    """

    def __init__(self, prediction_col: str = "prediction", label_col: str = "label") -> None:
        self.prediction_col = prediction_col
        self.label_col = label_col

    def evaluate(self, df: DataFrame) -> float:
        """Return the accuracy.

        Parameters
        ----------
        df : pyspark.sql.DataFrame
            Rows with both columns.

        Returns
        -------
        float
            Accuracy, from 0 to 1. A prediction with NaN counts as wrong.

        Raises
        ------
        SchemaError
            If a column is missing, or its type cannot name a class.
        EmptyDataError
            If there are no rows.
        LabelError
            If a row has no prediction, or no label that names a class.
        """
        cells = _count_pairs(df, self.prediction_col, self.label_col)
        right = sum(count for true, predicted, count in cells if true == predicted)
        return right / sum(count for *_, count in cells)

    def report(
        self,
        df: DataFrame,
        by: Sequence[str] | None = None,
        *,
        classes: Sequence[str] | None = None,
        combine: Combine = "mean",
    ) -> Evaluation:
        """Return precision and recall by class, for rows and for the units they belong to.

        Each figure has a 95 % interval; see `distkeras_grid.evaluation`.

        Parameters
        ----------
        df : pyspark.sql.DataFrame
            Rows with both columns and those of `by`.
        by : sequence of str, optional
            Columns that name the units of a row, the smallest unit first, such as ``("source",
            "specimen")``. The predictions for the rows of a unit are combined into one, and
            intervals are computed from the units of the last column. By default, those of
            `source` and `group` that the data have. Without any, rows count as independent.
        classes : sequence of str, optional
            Names of the classes. Default: for labels in the column ``label`` those in the
            columns' metadata, else numbers.
        combine : {"mean", "vote"}, default "mean"
            The class of a unit is the one with the largest mean prediction, or the one that most
            rows name. Predictions that are class numbers can only vote.

        Returns
        -------
        Evaluation
            ``print`` shows it as tables; `Evaluation.level` returns the figures of one unit.

        Raises
        ------
        SchemaError, EmptyDataError, LabelError
            As in `evaluate`; also if `classes` has fewer names than there are classes.
        DataError
            If a prediction holds NaN, predictions differ in length, or units are not nested.
        """
        by = default_units(df.columns) if by is None else list(by)
        return self.report_of(self.count(df, by), df, by, classes=classes, combine=combine)

    def count(self, df: DataFrame, by: Sequence[str]) -> VoteCounts:
        """Count the rows for `report_of`; this is the Spark job."""
        check_columns(df, (self.prediction_col, self.label_col, *by))
        return tallies_of(df, self.prediction_col, self.label_col, by)

    def report_of(
        self,
        counts: VoteCounts,
        df: DataFrame,
        by: Sequence[str],
        *,
        classes: Sequence[str] | None = None,
        combine: Combine = "mean",
    ) -> Evaluation:
        """Return the report of rows that have been counted; see `report`."""
        _check_counts(
            rows=counts.rows,
            unpredicted=counts.unpredicted,
            unlabelled=counts.unlabelled,
            columns=(self.prediction_col, self.label_col),
            are_numbers=counts.is_of_numbers,
        )
        if classes is None and self.label_col == NAMED_LABEL:
            names = class_names(df)
            # The labels may not be the ones that the metadata describe.
            classes = names if counts.largest < len(names) else ()
        return evaluate_tallies(
            counts.tallies,
            by,
            classes=classes or (),
            combine=combine if has_scores(df, self.prediction_col) else "vote",
        )


def default_units(columns: Sequence[str]) -> list[str]:
    """Return the columns that name the units of a row, the smallest unit first.

    Each ingested image is a row of its own; its `source` is a file that may hold thousands of them,
    unless images have groups, which only those in files of their own have.

    Examples
    --------
    >>> default_units(["image", "label", "source", "angle"])
    ['source']
    >>> default_units(["image", "label", "source", "item"])
    []
    >>> default_units(["image", "label", "source", "item", "group"])
    ['source', 'group']
    """
    units = [name for name in UNITS if name in columns]
    return [] if WHOLE_IMAGES in columns and GROUP_COLUMN not in units else units


def confusion_matrix(
    df: DataFrame,
    prediction_col: str = "prediction",
    label_col: str = "label",
    classes: int | None = None,
) -> npt.NDArray[np.int64]:
    """Count how often each class was predicted for each label.

    Shape of the result: (classes, classes).
    """
    return confusion_from_counts(_count_pairs(df, prediction_col, label_col), classes)


def _count_pairs(df: DataFrame, prediction_col: str, label_col: str) -> list[tuple[int, int, int]]:
    """Count the rows of each label and predicted class, in one aggregation job."""
    from pyspark.sql import functions as F

    check_columns(df, (prediction_col, label_col))
    pairs = df.select(
        true_class(df, label_col).alias("true"),
        predicted_class(df, prediction_col).alias("predicted"),
        single_number(df, label_col).alias("number"),
    )
    counted = pairs.groupBy("true", "predicted").agg(
        F.count(F.lit(1)).alias("rows"), F.max("number").alias("number")
    )
    groups = counted.collect()
    _check_counts(
        rows=sum(row["rows"] for row in groups),
        unpredicted=sum(row["rows"] for row in groups if row["predicted"] is None),
        unlabelled=sum(row["rows"] for row in groups if row["true"] is None),
        columns=(prediction_col, label_col),
        are_numbers=any(row["true"] is None and row["number"] is not None for row in groups),
    )
    return [(row["true"], row["predicted"], row["rows"]) for row in groups]


def _check_counts(
    *,
    rows: int,
    unpredicted: int,
    unlabelled: int,
    columns: tuple[str, str],
    are_numbers: bool,
) -> None:
    prediction_col, label_col = columns
    if not rows:
        raise EmptyDataError("There are no rows to evaluate. Check the path and the filter.")
    if unlabelled:
        how = "Filter the others out"
        if are_numbers:
            how = "Received: numbers with fractions. RegressionEvaluator measures these"
        raise LabelError(
            f"{unlabelled} of {rows} rows have no class in label column {label_col!r}: labels are "
            f"whole numbers or one-hot arrays, not null. {how}."
        )
    if unpredicted:
        raise LabelError(
            f"{unpredicted} of {rows} rows have no prediction in {prediction_col!r} (null, or an "
            "empty array). Filter them out."
        )
