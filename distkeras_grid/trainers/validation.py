"""Validation data on the driver, evaluated by Keras itself."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from distkeras_grid.engine.ends import input_dtypes, packed
from distkeras_grid.errors import ConfigurationError
from distkeras_grid.feeding.arrays import (
    as_model_sees,
    features_from_arrow,
    labels_from_arrow,
)
from distkeras_grid.feeding.spool import FEATURES, LABEL
from distkeras_grid.spark.dataframes import Columns
from distkeras_grid.spark.seats import travelling

if TYPE_CHECKING:
    import keras
    from numpy.typing import NDArray
    from pyspark.sql import DataFrame

    from distkeras_grid.feeding.schema import Field

# Rows of one evaluation step; only memory and the progress line depend on it.
BATCH_ROWS = 256


class ValidationData:
    """Features and labels held on the driver, as stored (uint8 stays uint8).

    Parameters
    ----------
    features, labels : tuple of ndarray
        One for each input and output of the model, ``(rows, *shape)`` and ``(rows,)`` or
        ``(rows, k)``.
    fields : tuple of Field
        Fields of the features, with the scaling that the model expects.
    """

    def __init__(
        self,
        features: tuple[NDArray[Any], ...],
        labels: tuple[NDArray[Any], ...],
        fields: tuple[Field, ...],
    ) -> None:
        self.features = features
        self.labels = labels
        self._fields = fields

    def __len__(self) -> int:
        """Rows."""
        return len(self.labels[0])

    @property
    def feature_bytes(self) -> int:
        """Bytes of all features."""
        return sum(array.nbytes for array in self.features)

    @classmethod
    def collect(cls, frame: DataFrame, columns: Columns) -> ValidationData:
        """Bring the columns of a DataFrame that has rows to the driver.

        Raises
        ------
        SchemaError
            If features are null or of another size than the field says.
        ConfigurationError
            If they exceed ``spark.driver.maxResultSize``.
        """
        from pyspark.errors import PySparkException

        try:
            table = frame.select(*travelling(frame, columns)).toArrow().combine_chunks()
        except PySparkException as error:
            if "maxResultSize" not in str(error):
                raise
            raise ConfigurationError(
                "the rows do not fit the driver's spark.driver.maxResultSize: pass a part of them, "
                "data.sample(0.1, seed=0), or raise that setting."
            ) from error
        batches = table.to_batches()
        features = tuple(
            np.concatenate(
                [features_from_arrow(batch.column(FEATURES.format(n)), field) for batch in batches]
            )
            for n, field in enumerate(columns.features)
        )
        labels = tuple(
            np.concatenate(
                [labels_from_arrow(batch.column(LABEL.format(n)), label.name) for batch in batches]
            )
            for n, label in enumerate(columns.labels)
        )
        return cls(features, labels, columns.features)

    def evaluate(self, model: keras.Model) -> dict[str, float]:
        """Return the model's loss and metrics, each key with ``val_`` before it."""
        found = model.evaluate(_batches(self, model), verbose=0, return_dict=True)
        return {f"val_{name}": float(value) for name, value in found.items()}

    def batch(self, number: int, dtypes: Sequence[str]) -> tuple[list[Any], list[Any]]:
        """Return features, as a model of these input types sees them, and labels of a batch."""
        rows = slice(number * BATCH_ROWS, (number + 1) * BATCH_ROWS)
        seen = [
            as_model_sees(features[rows], field, dtype)
            for features, field, dtype in zip(self.features, self._fields, dtypes, strict=True)
        ]
        return seen, [labels[rows] for labels in self.labels]


def _batches(data: ValidationData, model: keras.Model) -> Any:
    """Return a Keras data set that scales batch by batch, so that memory stays that of uint8."""
    import keras

    dtypes = input_dtypes(model)

    class Scaled(keras.utils.PyDataset):  # type: ignore[misc]
        def __len__(self) -> int:
            return math.ceil(len(data) / BATCH_ROWS)

        def __getitem__(self, number: int) -> tuple[Any, Any]:
            x, y = data.batch(number, dtypes)
            return packed(model, "input", x), packed(model, "output", y)

    return Scaled()
