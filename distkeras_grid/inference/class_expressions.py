"""Spark expressions for the class that a prediction or a label names; no row leaves the JVM.

============================  ================================================
a prediction                  names the class
============================  ================================================
an array of several numbers   the first largest number (argmax)
an array of one number        1 above 0.5, else 0, as Keras' binary accuracy
a whole number                the number itself
another number                1 above 0.5, else 0
anything with NaN             none (`NO_CLASS`), and is never right
============================  ================================================
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from distkeras_grid.errors import SchemaError
from distkeras_grid.evaluation.classification import NO_CLASS
from distkeras_grid.spark.columns import (
    is_number,
    is_number_array,
    is_vector,
    quoted,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import Column, DataFrame

THRESHOLD = 0.5


def check_columns(df: DataFrame, names: Iterable[str]) -> None:
    """Refuse a DataFrame that lacks a column."""
    missing = [name for name in names if name not in df.columns]
    if missing:
        raise SchemaError(
            f"The data have no column {', '.join(map(repr, missing))}. Columns: "
            f"{', '.join(df.columns)}."
        )


def predicted_class(df: DataFrame, name: str) -> Column:
    """Return the class that a prediction names, `NO_CLASS` for NaN, null where there is none."""
    from pyspark.sql import functions as F

    column, is_array = numbers_in(df, name)
    if not is_array:
        above = F.when(column > THRESHOLD, 1).otherwise(0)
        named = F.when(column == F.floor(column), column).otherwise(above)
        return F.when(F.isnan(column), NO_CLASS).otherwise(named).cast("long")
    single = F.when(F.element_at(column, 1) > THRESHOLD, 1).otherwise(0)
    named = F.when(F.size(column) == 1, single).otherwise(_first_largest(column))
    known = F.when(F.exists(column, F.isnan), NO_CLASS).otherwise(named)
    whole = (F.size(column) > 0) & ~F.exists(column, F.isnull)
    return F.when(whole, known).cast("long")


def true_class(df: DataFrame, name: str) -> Column:
    """Return the class of a label, null where it names none."""
    from pyspark.sql import functions as F

    column, is_array = numbers_in(df, name)
    if is_array:
        single = F.element_at(column, 1)
        ones = F.size(F.filter(column, lambda x: x == 1))
        zeros = F.size(F.filter(column, lambda x: x == 0))
        one_hot = (ones == 1) & (ones + zeros == F.size(column))
        labelled = F.when(one_hot, _first_largest(column))
        whole = F.when(single == F.floor(single), single)
        return F.when(F.size(column) == 1, whole).otherwise(labelled).cast("long")
    return F.when(column == F.floor(column), column).cast("long")


def single_number(df: DataFrame, name: str) -> Column:
    """Return the number of a column of numbers or of arrays of one; null for other arrays."""
    from pyspark.sql import functions as F

    column, is_array = numbers_in(df, name)
    return F.when(F.size(column) == 1, F.element_at(column, 1)) if is_array else column


def _first_largest(column: Column) -> Column:
    from pyspark.sql import functions as F

    return F.array_position(column, F.array_max(column)) - 1


def numbers_in(df: DataFrame, name: str) -> tuple[Column, bool]:
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
