"""Counts what predictions say about each class, by unit and label, with one Spark job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from distkeras_grid.errors import DataError
from distkeras_grid.evaluation.classification import NO_CLASS, ClassCounts
from distkeras_grid.feeding.schema import METADATA_KEY, Field
from distkeras_grid.inference.class_expressions import (
    numbers_in,
    predicted_class,
    single_number,
    true_class,
)
from distkeras_grid.spark.columns import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


@dataclass(frozen=True)
class VoteCounts:
    """What was counted."""

    # Tallies of the rows that have a label and a prediction
    tallies: list[ClassCounts] = field(default_factory=list)
    # rows and unlabelled and unpredicted: Numbers of all rows, of those whose label names no class,
    # and of those without a prediction
    rows: int = 0
    unlabelled: int = 0
    unpredicted: int = 0
    # Whether a prediction is a number that names no class, such as 3.5 for a label such as 3
    is_of_numbers: bool = False

    @property
    def largest(self) -> int:
        """The highest class number."""
        return max((max(each.true, each.named) for each in self.tallies), default=-1)


def tallies_of(
    df: DataFrame, prediction_col: str, label_col: str, by: Sequence[str] = ()
) -> VoteCounts:
    """Count rows by unit, label and class."""
    from pyspark.sql import functions as F

    units = [F.col(quoted(name)).cast("string").alias(f"unit_{i}") for i, name in enumerate(by)]
    true = true_class(df, label_col).alias("true")
    is_number = _is_number(df, prediction_col, label_col).alias("is_number")
    class_rows = df.select(
        *units, true, is_number, F.explode(_votes(df, prediction_col)).alias("vote")
    )
    keys = [*(f"unit_{i}" for i in range(len(by))), "true", "vote.named"]
    # A row scores every class and votes for one, so the sum of votes is the number of rows.
    sums = class_rows.groupBy(*keys).agg(
        F.sum("vote.votes").alias("votes"),
        F.sum("vote.score").alias("score"),
        F.count(F.lit(1)).alias("count"),
        F.max("is_number").alias("is_number"),
    )
    table = sums.toArrow().to_pydict()
    tallies, rows, unlabelled, unpredicted = [], 0, 0, 0
    names = (table[f"unit_{i}"] for i in range(len(by)))
    lengths: dict[int, int] = {}
    for *unit, label, named, votes, score, n in zip(
        *names, *(table[key] for key in ("true", "named", "votes", "score", "count")), strict=True
    ):
        rows += votes
        if label is None:
            unlabelled += votes
        elif named is None:
            unpredicted += votes
        else:
            lengths[named] = lengths.get(named, 0) + n
            tallies.append(ClassCounts(tuple(unit), label, named, votes, score))
    if numbers_in(df, prediction_col)[1]:
        _check_lengths(prediction_col, lengths)
    return VoteCounts(tallies, rows, unlabelled, unpredicted, any(table["is_number"]))


def class_names(df: DataFrame) -> tuple[str, ...]:
    """Return the class names in the metadata of a column, if any."""
    for column in df.schema:
        if METADATA_KEY in column.metadata:
            classes = Field.from_metadata(column.name, column.metadata).classes
            if classes:
                return classes
    return ()


def _votes(df: DataFrame, name: str) -> Column:
    """Return what a prediction says, as an array of structs: a class, its votes, its score."""
    from pyspark.sql import functions as F

    column, is_array = numbers_in(df, name)
    predicted = predicted_class(df, name)

    def struct(named: Column, votes: Column, score: Column) -> Column:
        return F.struct(
            named.cast("long").alias("named"),
            votes.cast("long").alias("votes"),
            score.cast("double").alias("score"),
        )

    # One that only names a class gives it all of its score.
    only = F.array(struct(predicted, F.lit(1), F.lit(1)))
    if not is_array:
        return only
    # A single number is that of class 1.
    scores = F.when(
        F.size(column) == 1, F.array(1 - F.element_at(column, 1), F.element_at(column, 1))
    ).otherwise(column)
    each = F.transform(scores, lambda score, place: struct(place, place == predicted, score))
    return F.when(predicted.isNull() | (predicted == NO_CLASS), only).otherwise(each)


def _is_number(df: DataFrame, prediction_col: str, label_col: str) -> Column:
    """Whether a prediction is a number that names no class.

    That for a label of 0 or 1 can be a score without bounds.
    """
    from pyspark.sql import functions as F

    label, number = (single_number(df, name) for name in (label_col, prediction_col))
    has_fraction = (number != F.floor(number)) & ~F.isnan(number)
    is_beyond = ((number < 0) | (number > 1)) & ((label < 0) | (label > 1))
    return F.coalesce(has_fraction & is_beyond, F.lit(False))


def _check_lengths(column: str, lengths: dict[int, int]) -> None:
    """Refuse predictions of different lengths: some of them lack a score for some class."""
    counts = {number: n for number, n in lengths.items() if number != NO_CLASS}
    if len(set(counts.values())) > 1:
        raise DataError(
            f"Predictions in column {column!r} have different lengths: {max(counts.values())} have "
            f"a number for class 0, {min(counts.values())} for class {max(counts)}. Evaluate the "
            "predictions of one model."
        )
