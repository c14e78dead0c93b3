"""How good the predictions of a DataFrame are, counted by Spark in one job."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from distkeras_grid.errors import EmptyDataError, LabelError
from distkeras_grid.evaluation.bootstrap import RESAMPLES
from distkeras_grid.evaluation.levels import Combine, Evaluation, evaluate_tallies
from distkeras_grid.inference.naming import check_columns, predicted_class, true_class
from distkeras_grid.inference.tallies import class_names, has_scores, tallies_of
from distkeras_grid.metrics import confusion_from_counts

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: Columns of a data set of tiles that tell what a row belongs to, the smallest unit first.
UNITS = ("source", "group")
# The column that only ingested images have: the place of an image in its file.
WHOLE_IMAGES = "item"
# The label column whose classes the metadata of a data set name.
NAMED_LABEL = "label"


class AccuracyEvaluator:
    """Measures how well predictions name the classes of labels.

    Parameters
    ----------
    prediction_col : str, default "prediction"
        Arrays of numbers or Spark ML vectors (the largest number wins; a single one is class 1
        above 0.5), or numbers (whole ones are classes, others class 1 above 0.5).
    label_col : str, default "label"
        Whole numbers, or one-hot arrays or vectors.

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
            With both columns.

        Returns
        -------
        float
            From 0 to 1. A prediction with NaN is wrong.

        Raises
        ------
        SchemaError
            If a column is missing, or of a type that names no class.
        EmptyDataError
            If there are no rows.
        LabelError
            If a row has no prediction, or no label that names a class.
        """
        from pyspark.sql import functions as F

        pairs = _pairs(df, self.prediction_col, self.label_col)
        counted = pairs.agg(
            F.count(F.lit(1)).alias("rows"),
            F.count_if(F.col("predicted") == F.col("true")).alias("right"),
            F.count_if(F.col("predicted").isNull()).alias("unpredicted"),
            F.count_if(F.col("true").isNull()).alias("unlabelled"),
        ).first()
        rows, right, unpredicted, unlabelled = counted or (0, 0, 0, 0)
        _check_counts(
            rows=rows,
            unpredicted=unpredicted,
            unlabelled=unlabelled,
            columns=(self.prediction_col, self.label_col),
        )
        return float(right / rows)

    def report(
        self,
        df: DataFrame,
        by: Sequence[str] | None = None,
        *,
        classes: Sequence[str] | None = None,
        combine: Combine = "mean",
        resamples: int = RESAMPLES,
        seed: int = 0,
    ) -> Evaluation:
        """Return precision and recall by class, for rows and for what they belong to.

        Each figure has a 95 % interval by the bootstrap; see `distkeras_grid.evaluation`.

        Parameters
        ----------
        df : pyspark.sql.DataFrame
            With both columns and those of `by`.
        by : sequence of str, optional
            Columns that tell what a row belongs to, the smallest unit first, such as ``("source",
            "specimen")``. The predictions of the rows of a unit become one, and intervals are
            resampled from units of the last column. Default: those of `source` and `group` that a
            data set of tiles has. Without any, rows are taken as independent.
        classes : sequence of str, optional
            Names of the classes; default those in the metadata of the columns, else numbers.
        combine : {"mean", "vote"}, default "mean"
            The class of a unit is that of the largest mean prediction, or the one that most rows
            name. Predictions that are numbers of classes can only vote.
        resamples : int, default 1000
            Of the bootstrap.
        seed : int, default 0
            The same data and the same seed give the same intervals.

        Returns
        -------
        Evaluation
            ``print`` shows it as tables; `Evaluation.level` returns the figures of one unit.

        Raises
        ------
        SchemaError, EmptyDataError, LabelError
            As `evaluate` does; also if `classes` are fewer than there are.
        DataError
            If a prediction holds NaN, predictions differ in length, or units do not lie in each
            other.
        """
        by = default_units(df.columns) if by is None else list(by)
        check_columns(df, (self.prediction_col, self.label_col, *by))
        counts = tallies_of(df, self.prediction_col, self.label_col, by)
        _check_counts(
            rows=counts.rows,
            unpredicted=counts.unpredicted,
            unlabelled=counts.unlabelled,
            columns=(self.prediction_col, self.label_col),
        )
        if classes is None and self.label_col == NAMED_LABEL:
            names = class_names(df)
            # The labels may be others than those that the metadata are about.
            classes = names if counts.largest < len(names) else ()
        return evaluate_tallies(
            counts.tallies,
            by,
            classes=classes or (),
            combine=combine if has_scores(df, self.prediction_col) else "vote",
            resamples=resamples,
            seed=seed,
        )


def default_units(columns: Sequence[str]) -> list[str]:
    """Return the columns that tell what a row belongs to, the smallest unit first.

    Ingested images are rows of their own, and their `source` is a file that may hold thousands.

    Examples
    --------
    >>> default_units(["image", "label", "source", "angle"])
    ['source']
    >>> default_units(["image", "label", "source", "item"])
    []
    """
    return [] if WHOLE_IMAGES in columns else [name for name in UNITS if name in columns]


def confusion_matrix(
    df: DataFrame,
    prediction_col: str = "prediction",
    label_col: str = "label",
    classes: int | None = None,
) -> npt.NDArray[np.int64]:
    """Count how often each class was taken for each, in one aggregate job.

    Parameters
    ----------
    df : pyspark.sql.DataFrame
        With both columns.
    prediction_col, label_col : str
        As in `AccuracyEvaluator`.
    classes : int, optional
        Number of classes; by default up to the largest that occurs.

    Returns
    -------
    ndarray of int64, shape (classes, classes)
        Row: the label; column: the prediction.

    Raises
    ------
    SchemaError, EmptyDataError
        As in `AccuracyEvaluator.evaluate`.
    LabelError
        As there, and if a class lies outside `classes`.
    DataError
        If a prediction holds NaN.
    """
    counted = _pairs(df, prediction_col, label_col).groupBy("true", "predicted").count()
    cells = [(row["true"], row["predicted"], row["count"]) for row in counted.collect()]
    _check_counts(
        rows=sum(n for _, _, n in cells),
        unpredicted=sum(n for _, predicted, n in cells if predicted is None),
        unlabelled=sum(n for true, _, n in cells if true is None),
        columns=(prediction_col, label_col),
    )
    return confusion_from_counts(cells, classes)


def _pairs(df: DataFrame, prediction_col: str, label_col: str) -> DataFrame:
    check_columns(df, (prediction_col, label_col))
    return df.select(
        true_class(df, label_col).alias("true"),
        predicted_class(df, prediction_col).alias("predicted"),
    )


def _check_counts(
    *, rows: int, unpredicted: int, unlabelled: int, columns: tuple[str, str]
) -> None:
    prediction_col, label_col = columns
    if not rows:
        raise EmptyDataError("There are no rows to evaluate. Check the path and the filter.")
    if unlabelled:
        raise LabelError(
            f"{unlabelled} of {rows} rows have no class in label column {label_col!r}: labels are "
            "whole numbers or one-hot arrays, not null. Filter the others out."
        )
    if unpredicted:
        raise LabelError(
            f"{unpredicted} of {rows} rows have no prediction in {prediction_col!r} (null, or an "
            "empty array). Filter them out."
        )
