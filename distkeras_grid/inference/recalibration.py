"""Batch normalization's means and variances, computed anew from all rows with a model's weights.

While a model trains, they are moving averages over weights that have changed since, and over
workers with different weights.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial, reduce
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from distkeras_grid.engine.keras_model import normalizations
from distkeras_grid.errors import ConfigurationError, EmptyDataError
from distkeras_grid.feeding.schema import Field
from distkeras_grid.feeding.shapes import check_fit
from distkeras_grid.inference.predictor import ShippedModel, model_inputs, ship_model

if TYPE_CHECKING:
    import keras
    import pyarrow as pa
    from numpy.typing import NDArray

    from distkeras_grid.spark.columns import FeatureColumns

SCHEMA = "rows long, mean binary, squares binary"


class Moments(NamedTuple):
    """Number of rows, mean, and sum of squared deviations from it, of the inputs of all layers."""

    rows: int
    mean: NDArray[np.float64]
    squares: NDArray[np.float64]

    def merge(self, other: Moments) -> Moments:
        """Return the moments of both sets of rows (Chan, Golub and LeVeque 1983)."""
        rows = self.rows + other.rows
        difference = other.mean - self.mean
        mean = self.mean + difference * (other.rows / rows)
        between = difference**2 * (self.rows * other.rows / rows)
        return Moments(rows, mean, self.squares + other.squares + between)


def recalibrate(
    keras_model: keras.Model,
    data: Any,
    features_col: FeatureColumns = "features",
    batch_size: int = 256,
    custom_objects: Mapping[str, Any] | None = None,
) -> None:
    """Set batch normalization's means and variances to those of all rows, in one Spark job.

    Parameters
    ----------
    keras_model : keras.Model
        A built model, such as ``train`` returns; these statistics are changed in place, for the
        layers that are trainable.
    data : str or pyspark.sql.DataFrame
        The rows, such as those of the training.
    features_col : str, Field, list or dict, default "features"
        As in `ModelPredictor`.
    batch_size : int, default 256
        Rows in one forward pass, which is in training mode. A layer behind another normalization
        sees rows that were normalized by the statistics of their batch.
    custom_objects : mapping of str to object, optional
        As in `ModelPredictor`.

    Raises
    ------
    ConfigurationError
        If the model has no layer of batch normalization that trains, or cannot be saved.
    SchemaError
        If a feature column is missing or does not fit the model.
    EmptyDataError
        If there are no rows.
    """
    from distkeras_grid.spark.columns import map_batches, resolve_features, value_expression
    from distkeras_grid.spark.dataframes import as_dataframe
    from distkeras_grid.spark.session import active_session

    if not normalizations(keras_model):
        raise ConfigurationError(
            f"Model {keras_model.name!r} has no layer of batch normalization that trains."
        )
    if batch_size < 1:
        raise ConfigurationError(f"batch_size must be at least 1. Received: {batch_size}.")
    spark = active_session()
    frame = as_dataframe(spark, data)
    fields = resolve_features(frame, features_col, keras_model)
    check_fit(keras_model, fields)
    model = ship_model(spark, keras_model, dict(custom_objects or {}))
    columns = frame.select(
        *(value_expression(frame, field).alias(f"_{n}") for n, field in enumerate(fields))
    )
    task = partial(_measured, model, fields, batch_size)
    parts = [
        Moments(row.rows, np.frombuffer(row.mean), np.frombuffer(row.squares))
        for row in map_batches(columns, task, SCHEMA).collect()
    ]
    if not parts:
        raise EmptyDataError("There are no rows to compute statistics from.")
    set_statistics(keras_model, reduce(Moments.merge, parts))


def _measured(
    shipped: ShippedModel,
    fields: Sequence[Field],
    batch_size: int,
    batches: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """Yield the moments of one partition's rows; Spark runs this on an executor."""
    import pyarrow as pa

    parts = (
        batch.slice(start, batch_size)
        for batch in batches
        for start in range(0, batch.num_rows, batch_size)
    )
    if (first := next(parts, None)) is None:
        return
    model = shipped.load()
    inputs = (model_inputs(model, fields, part.columns) for part in chain([first], parts))
    rows, mean, squares = measure_statistics(model, inputs)
    yield pa.RecordBatch.from_pydict(
        {"rows": [rows], "mean": [mean.tobytes()], "squares": [squares.tobytes()]}
    )


def measure_statistics(model: Any, batches: Iterable[Any]) -> Moments:
    """Return the moments that a model's normalizations see in batches of its inputs, at least one.

    The model's own statistics become those of the last batch.
    """
    import keras

    layers = normalizations(model)
    for layer in layers:
        # The moving averages are then the statistics of the last batch.
        layer.momentum = 0.0
    moments: Moments | None = None
    for batch in batches:
        with _without_gradients():
            model(batch, training=True)
        rows = len(keras.tree.flatten(batch)[0])
        mean, variance = (
            np.concatenate([np.asarray(getattr(layer, name), np.float64) for layer in layers])
            for name in ("moving_mean", "moving_variance")
        )
        batch_moments = Moments(rows, mean, rows * variance)
        moments = batch_moments if moments is None else moments.merge(batch_moments)
    if moments is None:
        raise EmptyDataError("There are no rows to compute statistics from.")
    return moments


def _without_gradients() -> Any:
    import keras

    if keras.backend.backend() != "torch":
        return nullcontext()
    import torch

    return torch.no_grad()


def set_statistics(model: Any, moments: Moments) -> None:
    """Write means and variances into a model's normalizations."""
    layers = normalizations(model)
    ends = np.cumsum([layer.moving_mean.shape[0] for layer in layers])[:-1]
    means = np.split(moments.mean, ends)
    variances = np.split(moments.squares / moments.rows, ends)
    for layer, mean, variance in zip(layers, means, variances, strict=True):
        layer.moving_mean.assign(mean)
        layer.moving_variance.assign(variance)
