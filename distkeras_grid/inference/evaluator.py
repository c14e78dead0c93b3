"""How many predictions of a DataFrame are right, counted by Spark in one job.

What class a prediction or a label names is decided as in `distkeras_grid.metrics`, here as Spark
SQL expressions, so that no row leaves the JVM.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from distkeras_grid.errors import EmptyDataError, LabelError, SchemaError
from distkeras_grid.metrics import NO_CLASS, THRESHOLD, confusion_from_counts
from distkeras_grid.spark.dataframes import (
    is_number,
    is_number_array,
    is_vector,
    quoted,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


class AccuracyEvaluator:
    """Measures the share of rows whose prediction names the label's class.

    Parameters
    ----------
    prediction_col : str, default "prediction"
        Arrays of numbers or Spark ML vectors (the largest number wins; a single one is class 1
        above 0.5), or numbers (whole ones are classes, others class 1 above 0.5).
    label_col : str, default "label"
        Whole numbers, or one-hot arrays or vectors.

    Examples
    --------
    >>> AccuracyEvaluator("prediction", "label").evaluate(predictions)  # doctest: +SKIP
    0.9375
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

        pairs = _class_pairs(df, self.prediction_col, self.label_col)
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
    counted = _class_pairs(df, prediction_col, label_col).groupBy("true", "predicted").count()
    cells = [(row["true"], row["predicted"], row["count"]) for row in counted.collect()]
    _check_counts(
        rows=sum(n for _, _, n in cells),
        unpredicted=sum(n for _, predicted, n in cells if predicted is None),
        unlabelled=sum(n for true, _, n in cells if true is None),
        columns=(prediction_col, label_col),
    )
    return confusion_from_counts(cells, classes)


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


def _class_pairs(df: DataFrame, prediction_col: str, label_col: str) -> DataFrame:
    missing = [name for name in (prediction_col, label_col) if name not in df.columns]
    if missing:
        raise SchemaError(
            f"The data have no column {', '.join(map(repr, missing))}. Columns: "
            f"{', '.join(df.columns)}."
        )
    return df.select(
        _true_class(df, label_col).alias("true"),
        _predicted_class(df, prediction_col).alias("predicted"),
    )


def _predicted_class(df: DataFrame, name: str) -> Column:
    from pyspark.sql import functions as F

    column, is_array = _numbers(df, name)
    if not is_array:
        above = F.when(column > THRESHOLD, 1).otherwise(0)
        named = F.when(column == F.floor(column), column).otherwise(above)
        return F.when(F.isnan(column), NO_CLASS).otherwise(named).cast("long")
    single = F.when(F.element_at(column, 1) > THRESHOLD, 1).otherwise(0)
    named = F.when(F.size(column) == 1, single).otherwise(_first_largest(column))
    known = F.when(F.exists(column, F.isnan), NO_CLASS).otherwise(named)
    whole = (F.size(column) > 0) & ~F.exists(column, F.isnull)
    return F.when(whole, known).cast("long")


def _true_class(df: DataFrame, name: str) -> Column:
    from pyspark.sql import functions as F

    column, is_array = _numbers(df, name)
    if is_array:
        single = F.element_at(column, 1)
        ones = F.size(F.filter(column, lambda x: x == 1))
        zeros = F.size(F.filter(column, lambda x: x == 0))
        one_hot = (ones == 1) & (ones + zeros == F.size(column))
        labelled = F.when(one_hot, _first_largest(column))
        whole = F.when(single == F.floor(single), single)
        return F.when(F.size(column) == 1, whole).otherwise(labelled).cast("long")
    return F.when(column == F.floor(column), column).cast("long")


def _first_largest(column: Column) -> Column:
    from pyspark.sql import functions as F

    return F.array_position(column, F.array_max(column)) - 1


def _numbers(df: DataFrame, name: str) -> tuple[Column, bool]:
    """Return a column as double or array of double, and whether it is an array."""
    from pyspark.sql import functions as F

    column = F.col(quoted(name))
    kind = df.schema[name].dataType
    if is_vector(kind):
        from pyspark.ml.functions import vector_to_array

        return vector_to_array(column), True
    if is_number(kind):
        return column.cast("double"), False
    if is_number_array(kind):
        return column.cast("array<double>"), True
    raise SchemaError(
        f"Column {name!r} must hold numbers, arrays of numbers or vectors. Received: "
        f"{kind.simpleString()}."
    )
