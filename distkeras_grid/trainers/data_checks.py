"""Checks of the data before a run, with one job for each data set."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from distkeras_grid.errors import ConfigurationError, DataError, SplitLeakError
from distkeras_grid.spark.columns import Columns, quoted
from distkeras_grid.spark.dataframes import SPLIT_COLUMN
from distkeras_grid.spark.row_partitioner import DataSummary, summarize
from distkeras_grid.trainers.labels import check_labels, takes_of

if TYPE_CHECKING:
    import keras
    from pyspark.sql import DataFrame

    from distkeras_grid.feeding.targets import Takes


def inspect_training(
    frame: DataFrame,
    columns: Columns,
    model: keras.Model,
) -> DataSummary:
    """Count the training rows, and refuse labels, weights and splits that cannot be trained."""
    summary = _summarize(frame, columns, takes_of(columns, model))
    check_labels(columns, summary, model)
    return summary


def inspect_validation(
    frame: DataFrame, columns: Columns, model: keras.Model, training: DataSummary
) -> None:
    """Refuse validation data that cannot be evaluated, or that are trained on."""
    try:
        summary = _summarize(frame, columns, takes_of(columns, model))
    except SplitLeakError as error:
        raise SplitLeakError(
            "The data hold rows of more than one split, perhaps those that are trained on; take "
            f"one: validation_data.where(\"{SPLIT_COLUMN} = 'test'\")."
        ) from error
    check_labels(columns, summary, model)
    common = sorted({*summary.splits} & {*training.splits})
    if common:
        raise SplitLeakError(
            f"The data are of the split {common[0]!r}, as the training data are; take another one: "
            f"validation_data.where(\"{SPLIT_COLUMN} = 'test'\"). If no row is in both, say so by "
            f'leaving the column out: validation_data.drop("{SPLIT_COLUMN}").'
        )


@contextmanager
def naming(what: str) -> Iterator[None]:
    """Put the name of the data before the message of an error about them."""
    try:
        yield
    except (DataError, ConfigurationError) as error:
        raise type(error)(f"{what}: {error}") from error


def _summarize(frame: DataFrame, columns: Columns, takes: Sequence[Takes]) -> DataSummary:
    """Summarize the data, and refuse weights that are none, all in one job."""
    if columns.weight is None:
        return summarize(frame, columns, takes)
    from pyspark.sql import Observation
    from pyspark.sql import functions as F

    weight = F.col(quoted(columns.weight)).cast("float")
    usable = (weight >= 0) & (weight < math.inf)
    # Nulls are neither usable nor not. Spark takes NaN for the largest number, above infinity.
    unusable = ~F.coalesce(usable, F.lit(False))
    observed = Observation()
    counted = frame.observe(observed, F.count(F.when(unusable, 1)).alias("unusable"))
    summary = summarize(counted, columns, takes)
    count = observed.get["unusable"]
    if count:
        raise DataError(
            f"Column {columns.weight!r} must have a finite weight of at least 0 in every row. "
            f"Received: {count} of {summary.rows} rows with null, NaN, infinite or negative "
            "weights. Drop or correct these rows first."
        )
    return summary
