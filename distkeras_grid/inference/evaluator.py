"""Measures how good the predictions in a DataFrame are, with one Spark job."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from distkeras_grid.errors import EmptyDataError, LabelError
from distkeras_grid.evaluation.classification import Evaluation, evaluate_tallies
from distkeras_grid.inference.class_expressions import check_columns
from distkeras_grid.inference.vote_counts import VoteCounts, class_names, tallies_of
from distkeras_grid.spark.dataframes import GROUP_COLUMN, SOURCE_COLUMN

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: Columns of a data set of tiles that name the units of a row, the smallest unit first.
UNITS = (SOURCE_COLUMN, GROUP_COLUMN)
# The column that only ingested images have: the place of an image in its file.
WHOLE_IMAGES = "item"
# The label column for which the metadata of a data set give the class names.
NAMED_LABEL = "label"
NUMBERS = "Predicted numbers are measured by RegressionEvaluator of pyspark.ml.evaluation."


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
            If a row has no prediction, or no label that names a class, or if predictions are
            numbers that name none.
        DataError
            If predictions differ in length.
        """
        counts = self._count(df, ())
        right = sum(each.votes for each in counts.tallies if each.true == each.named)
        return right / counts.rows

    def report(
        self,
        df: DataFrame,
        by: Sequence[str] | None = None,
        *,
        classes: Sequence[str] | None = None,
    ) -> Evaluation:
        """Return precision and recall by class, for rows and for the units they belong to.

        The accuracy has a 95 % interval; see `distkeras_grid.evaluation`.

        Parameters
        ----------
        df : pyspark.sql.DataFrame
            Rows with both columns and those of `by`.
        by : sequence of str, optional
            Columns that name the units of a row, the smallest unit first, such as ``("source",
            "specimen")``. The class of a unit is the one with the largest mean prediction of its
            rows, and intervals are computed from the units of the last column. By default, those
            of `source` and `group` that the data have. Without any, rows count as independent.
        classes : sequence of str, optional
            Names of the classes. Default: for labels in the column ``label`` those in the
            columns' metadata, else numbers.

        Returns
        -------
        Evaluation
            ``print`` shows it as tables; `Evaluation.level` returns the figures of one unit.

        Raises
        ------
        SchemaError, EmptyDataError, LabelError
            As in `evaluate`; also if `classes` has fewer names than there are classes.
        DataError
            If a prediction holds NaN, or units are not nested; also as in `evaluate`.
        """
        by = default_units(df.columns) if by is None else list(by)
        counts = self._count(df, by)
        if classes is None and self.label_col == NAMED_LABEL:
            names = class_names(df)
            # The labels may not be the ones that the metadata describe.
            classes = names if counts.largest < len(names) else ()
        return evaluate_tallies(counts.tallies, by, classes=classes or ())

    def _count(self, df: DataFrame, by: Sequence[str]) -> VoteCounts:
        """Count the rows, in the Spark job; refuse those that name no class."""
        check_columns(df, (self.prediction_col, self.label_col, *by))
        counts = tallies_of(df, self.prediction_col, self.label_col, by)
        if not counts.rows:
            raise EmptyDataError("There are no rows to evaluate. Check the path and the filter.")
        if counts.unlabelled:
            raise LabelError(
                f"{counts.unlabelled} of {counts.rows} rows have no class in label column "
                f"{self.label_col!r}: labels are whole numbers or one-hot arrays, not null. Filter "
                f"the others out. {NUMBERS}"
            )
        if counts.unpredicted:
            raise LabelError(
                f"{counts.unpredicted} of {counts.rows} rows have no prediction in "
                f"{self.prediction_col!r} (null, or an empty array). Filter them out."
            )
        if counts.is_of_numbers:
            raise LabelError(
                f"Predictions in {self.prediction_col!r} are numbers that name no class, for "
                f"labels above 1 in {self.label_col!r}. {NUMBERS}"
            )
        return counts


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
