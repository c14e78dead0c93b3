"""What the rows of a DataFrame have: partitions, splits and labels, as tasks see them in Arrow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from distkeras_grid.errors import LabelError
from distkeras_grid.feeding.arrays import as_model_sees, features_from_arrow, is_binary, is_list
from distkeras_grid.feeding.encodings import ENCODED
from distkeras_grid.feeding.schema import Field
from distkeras_grid.feeding.targets import LabelSummary, Takes

if TYPE_CHECKING:
    import pyarrow as pa

PARTITION, SPLIT, LABEL = "partition", "split", "label_{}"
# One row for the rows of a partition in a batch, with an item for each label.
SUMMARIES = (
    "partition int, rows long, splits array<string>, low array<double>, high array<double>, "
    "missing array<long>, fractions array<long>, broken array<long>"
)


def summarize_batches(
    labels: Sequence[Field], takes: Sequence[Takes], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Yield the summaries of batches with the columns `PARTITION`, `SPLIT` and `LABEL`."""
    import pyarrow as pa
    import pyarrow.compute as pc

    floats, counts = pa.list_(pa.float64()), pa.list_(pa.int64())
    kinds = [pa.int32(), pa.int64(), pa.list_(pa.string()), floats, floats, *[counts] * 3]
    names = [column.split()[0] for column in SUMMARIES.split(", ")]
    for batch in batches:
        for partition in pc.unique(batch.column(PARTITION)).to_pylist():
            rows = batch.filter(pc.equal(batch.column(PARTITION), partition))
            splits = pc.unique(rows.column(SPLIT).drop_null()).to_pylist()
            each = [
                summarize_label(rows.column(LABEL.format(place)), label, taken)
                for place, (label, taken) in enumerate(zip(labels, takes, strict=True))
            ]
            values: list[Any] = [
                partition,
                rows.num_rows,
                splits,
                *map(list, zip(*each, strict=True)),
            ]
            values += [[]] * (len(names) - len(values))
            arrays = [pa.array([value], kind) for value, kind in zip(values, kinds, strict=True)]
            yield pa.RecordBatch.from_arrays(arrays, names)


def summarize_label(
    column: pa.Array, label: Field, takes: Takes
) -> tuple[float, float, int, int, int]:
    """Return the numbers of a `LabelSummary`, and in how many rows there is no such label.

    Bytes are decoded only if there are numbers that the loss does not take.
    """
    broken = count_broken(column, label)
    summary = LabelSummary()
    if not broken and (takes.bounded or not is_binary(column.type)):
        values = as_model_sees(features_from_arrow(column, label), label, label.dtype)
        summary = LabelSummary.of(values, takes)
    return summary.low, summary.high, summary.missing, summary.fractions, broken


def count_broken(column: pa.Array, label: Field) -> int:
    """Return how many values are null, have a null among their numbers, or another size."""
    import pyarrow.compute as pc

    broken = column.is_null().to_numpy(zero_copy_only=False)
    if is_list(column.type):
        parents = pc.list_parent_indices(column).filter(column.flatten().is_null())
        broken[parents.to_numpy()] = True
        sizes, size = pc.list_value_length(column), label.size
    elif is_binary(column.type) and label.encoding not in ENCODED:
        sizes, size = pc.binary_length(column), label.nbytes
    else:
        return int(broken.sum())
    wrong = sizes.fill_null(size).to_numpy(zero_copy_only=False) != size
    return int(np.logical_or(broken, wrong).sum())


def merge_summaries(parts: Sequence[Any], labels: Sequence[Field]) -> tuple[LabelSummary, ...]:
    """Return the summary of each label from rows of `SUMMARIES`."""
    rows = sum(part["rows"] for part in parts)
    summaries = []
    for place, label in enumerate(labels):
        broken = sum(part["broken"][place] for part in parts)
        if broken:
            what = f"of shape {label.shape}" if label.shape else "that is a number"
            raise LabelError(
                f"Column {label.name!r} must have a label {what} in every row. Received: "
                f"{broken} of {rows} rows without one (null, a null in an array, or another size). "
                "Drop or correct them first."
            )
        names = ("low", "high", "missing", "fractions")
        each = (LabelSummary(*(part[name][place] for name in names)) for part in parts)
        summaries.append(LabelSummary.merged(each))
    return tuple(summaries)
