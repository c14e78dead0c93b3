"""Validation data on the driver, evaluated by Keras itself."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from distkeras_grid.errors import ConfigurationError
from distkeras_grid.feeding.arrays import features_from_arrow, labels_from_arrow
from distkeras_grid.spark.dataframes import Columns, feature_expression
from distkeras_grid.spark.seats import FEATURES, LABEL, label_expression

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
    features, labels : ndarray
        ``(rows, *shape)`` and ``(rows,)`` or ``(rows, k)``.
    field : Field
        The scaling that the model expects.
    """

    def __init__(
        self,
        features: NDArray[Any],
        labels: NDArray[Any],
        field: Field,
    ) -> None:
        self.features = features
        self.labels = labels
        self._field = field

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

        chosen = frame.select(
            feature_expression(frame, columns.features).alias(FEATURES),
            label_expression(frame, columns).alias(LABEL),
        )
        try:
            table = chosen.toArrow().combine_chunks()
        except PySparkException as error:
            if "maxResultSize" not in str(error):
                raise
            raise ConfigurationError(
                "validation_data do not fit the driver's spark.driver.maxResultSize: pass a part "
                "of them, data.sample(0.1, seed=0), or raise that setting."
            ) from error
        features, labels = [], []
        for batch in table.to_batches():
            features.append(features_from_arrow(batch.column(0), columns.features))
            labels.append(labels_from_arrow(batch.column(1), columns.label))
        return cls(np.concatenate(features), np.concatenate(labels), columns.features)

    def evaluate(self, model: keras.Model) -> dict[str, float]:
        """Return the model's loss and metrics, each key with ``val_`` before it."""
        import keras

        found = model.evaluate(
            _batches(keras, self.features, self.labels, self._field),
            verbose=0,
            return_dict=True,
        )
        return {f"val_{name}": float(value) for name, value in found.items()}


def _batches(keras: Any, features: NDArray[Any], labels: NDArray[Any], field: Field) -> Any:
    """Return a Keras data set that scales batch by batch, so that memory stays that of uint8."""

    class Scaled(keras.utils.PyDataset):  # type: ignore[misc]
        def __len__(self) -> int:
            return math.ceil(len(features) / BATCH_ROWS)

        def __getitem__(self, index: int) -> tuple[NDArray[np.float32], NDArray[Any]]:
            rows = slice(index * BATCH_ROWS, (index + 1) * BATCH_ROWS)
            values = features[rows].astype(np.float32)
            return values * np.float32(field.scale) + np.float32(field.offset), labels[rows]

    return Scaled()
