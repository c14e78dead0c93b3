"""What the label columns of a DataFrame have: counted by Spark; bytes are read by its tasks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from distkeras_grid.errors import LabelError
from distkeras_grid.feeding.arrays import as_model_sees, features_from_arrow
from distkeras_grid.feeding.encodings import ENCODED
from distkeras_grid.feeding.schema import Field
from distkeras_grid.feeding.targets import LabelSummary, Takes
from distkeras_grid.spark.columns import is_binary, is_image, value_expression

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame

_SUMMARY = "low double, high double, missing long, fractions long"


def is_bytes(frame: DataFrame, label: Field) -> bool:
    """Whether only Python can read the numbers of a column."""
    if label.columns:
        return False
    kind = frame.schema[label.name].dataType
    return is_binary(kind) or is_image(kind)


def label_aggregates(frame: DataFrame, label: Field, takes: Takes, place: int) -> list[Column]:
    """Return the aggregates of a label, by the names that `summary_of` reads."""
    from pyspark.sql import functions as F

    value = value_expression(frame, label)
    none = F.lit(None).cast("double")
    if is_bytes(frame, label):
        broken, expressions = value.isNull(), [none, none, F.lit(0), F.lit(0)]
        if label.encoding not in ENCODED:
            broken = broken | (F.length(value) != label.nbytes)
    else:
        numbers = F.array(value) if not label.shape else value
        broken = value.isNull() | (F.size(numbers) != label.size) | F.exists(numbers, F.isnull)
        expressions = _numbers_in(numbers, label, takes)
    low, high, missing, fractions = expressions
    return [
        F.min(low).alias(f"low_{place}"),
        F.max(high).alias(f"high_{place}"),
        F.sum(broken.cast("long")).alias(f"broken_{place}"),
        F.sum(missing.cast("long")).alias(f"missing_{place}"),
        F.sum(fractions.cast("long")).alias(f"fractions_{place}"),
    ]


def _numbers_in(numbers: Column, label: Field, takes: Takes) -> list[Column]:
    from pyspark.sql import functions as F

    is_float = label.dtype.startswith("float")
    known, missing, fractions = numbers, F.lit(0), F.lit(0)
    if takes.ignored is not None:
        known = F.filter(known, lambda value: value != F.lit(takes.ignored))
    if is_float:
        missing = F.exists(numbers, F.isnan)
        known = F.filter(known, lambda value: ~F.isnan(value))
        fractions = F.exists(known, lambda value: value.cast("double") != F.floor(value))
    return [F.array_min(known), F.array_max(known), missing, fractions]


def summary_of(summaries: Sequence[Any], label: Field, place: int, rows: int) -> LabelSummary:
    """Turn the aggregate's rows into the summary of a label."""
    broken = sum(row[f"broken_{place}"] or 0 for row in summaries)
    if broken:
        what = f"of shape {label.shape}" if label.shape else "that is a number"
        raise LabelError(
            f"Column {label.name!r} must have a label {what} in every row. Received: "
            f"{broken} of {rows} rows without one (null, a null in an array, or another size). "
            "Drop or correct them first."
        )
    return LabelSummary.merged(
        LabelSummary(
            _number(row[f"low_{place}"]),
            _number(row[f"high_{place}"]),
            row[f"missing_{place}"] or 0,
            row[f"fractions_{place}"] or 0,
        )
        for row in summaries
    )


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)


def summary_of_bytes(frame: DataFrame, label: Field, takes: Takes) -> LabelSummary:
    """Return the summary of a label that is binary, in a job of its own that decodes it."""
    task = partial(_summarize_batches, label, takes)
    rows = frame.select(value_expression(frame, label)).mapInArrow(task, _SUMMARY).collect()
    return LabelSummary.merged(LabelSummary(*row) for row in rows)


def _summarize_batches(
    label: Field, takes: Takes, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    for batch in batches:
        if not batch.num_rows:
            continue
        values = as_model_sees(features_from_arrow(batch.column(0), label), label, label.dtype)
        summary = LabelSummary.of(values, takes)
        yield pa.RecordBatch.from_pydict(
            {
                "low": [summary.low],
                "high": [summary.high],
                "missing": [summary.missing],
                "fractions": [summary.fractions],
            }
        )
