"""Measures how good predicted numbers are, with one Spark job."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from distkeras_grid.errors import ConfigurationError, DataError, EmptyDataError, LabelError
from distkeras_grid.evaluation.regression import (
    METRICS,
    ErrorMoments,
    RegressionEvaluation,
    evaluate_moments,
)
from distkeras_grid.inference.class_expressions import check_columns, single_number
from distkeras_grid.inference.evaluator import default_units
from distkeras_grid.spark.columns import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Independent rows are divided into at most so many parts, each of which is left out once.
PARTS = 1000


class RegressionEvaluator:
    """Measures how far predicted numbers are from labels.

    Parameters
    ----------
    prediction_col : str, default "prediction"
        Name of the column of predictions: numbers, or arrays or vectors of one number.
    label_col : str, default "label"
        Name of the column of labels, likewise.
    metric : {"rmse", "mae", "r2"}, default "rmse"
        What `evaluate` returns, as Spark ML names it.

    Examples
    --------
    >>> evaluator = RegressionEvaluator("prediction", "diameter", metric="mae")
    >>> evaluator.evaluate(predictions)  # doctest: +SKIP
    0.21
    >>> print(evaluator.report(predictions))  # doctest: +SKIP
    MAE 0.2100, RMSE 0.3012, R2 0.8913 on 1400 rows
    ...
    """

    def __init__(
        self,
        prediction_col: str = "prediction",
        label_col: str = "label",
        metric: str = "rmse",
    ) -> None:
        if metric not in METRICS:
            raise ConfigurationError(f"metric must be one of {METRICS}. Received: {metric!r}.")
        self.prediction_col = prediction_col
        self.label_col = label_col
        self.metric = metric

    def evaluate(self, df: DataFrame) -> float:
        """Return the metric of the rows, NaN where it is not defined.

        Raises
        ------
        SchemaError, EmptyDataError, LabelError, DataError
            As in `report`.
        """
        value = getattr(self.report(df, ()).levels[0], self.metric).value
        return float("nan") if value is None else float(value)

    def report(self, df: DataFrame, by: Sequence[str] | None = None) -> RegressionEvaluation:
        """Return MAE, RMSE and R2 with 95 % intervals, for rows and for the units they belong to.

        Parameters
        ----------
        df : pyspark.sql.DataFrame
            Rows with both columns and those of `by`.
        by : sequence of str, optional
            As in `AccuracyEvaluator.report`. The label and the prediction of a unit are the means
            of those of its rows.

        Raises
        ------
        SchemaError
            If a column is missing, or does not hold numbers.
        EmptyDataError
            If there are no rows.
        LabelError
            If a row has no label or no prediction, or has an array of several.
        DataError
            If a label or a prediction is NaN or infinite, or units are not nested.
        """
        by = default_units(df.columns) if by is None else list(by)
        check_columns(df, (self.prediction_col, self.label_col, *by))
        return evaluate_moments(self._moments(df, by), by)

    def _moments(self, df: DataFrame, by: Sequence[str]) -> list[ErrorMoments]:
        from pyspark.sql import functions as F

        keys = [F.col(quoted(name)).cast("string").alias(f"unit_{i}") for i, name in enumerate(by)]
        # Any division will do, if it does not depend on the values.
        parts = [] if by else [(F.monotonically_increasing_id() % PARTS).alias("part")]
        label, prediction = (
            single_number(df, name) for name in (self.label_col, self.prediction_col)
        )
        rows = df.select(*keys, *parts, label.alias("label"), prediction.alias("output"))
        error = F.col("output") - F.col("label")
        is_finite = F.abs(F.col("output")) + F.abs(F.col("label")) < float("inf")
        sums = rows.groupBy(*rows.columns[:-2]).agg(
            F.count(F.lit(1)).alias("count"),
            F.avg("label").alias("label"),
            F.avg("output").alias("prediction"),
            F.var_pop("label").alias("variance"),
            F.avg(F.abs(error)).alias("absolute"),
            F.avg(error * error).alias("squared"),
            F.count_if(F.col("label").isNull()).alias("unlabelled"),
            F.count_if(F.col("output").isNull()).alias("unpredicted"),
            F.count_if(~is_finite).alias("infinite"),
        )
        table = sums.toArrow().to_pylist()
        self._check({name: sum(row[name] for row in table) for name in sums.columns[-3:]}, table)
        numbers = ("count", "label", "prediction", "variance", "absolute", "squared")
        return [
            ErrorMoments(
                tuple(row[f"unit_{i}"] for i in range(len(by))), *(row[name] for name in numbers)
            )
            for row in table
        ]

    def _check(self, wrong: dict[str, int], table: Sequence[object]) -> None:
        if not table:
            raise EmptyDataError("There are no rows to evaluate. Check the path and the filter.")
        columns = {"unlabelled": self.label_col, "unpredicted": self.prediction_col}
        for what, column in columns.items():
            if wrong[what]:
                raise LabelError(
                    f"{wrong[what]} rows have no single number in column {column!r}: null, or an "
                    "array of none or of several. Filter them out, or select one."
                )
        if wrong["infinite"]:
            raise DataError(
                f"{wrong['infinite']} rows have NaN or infinite numbers in {self.label_col!r} or "
                f"{self.prediction_col!r}. Filter them out."
            )
