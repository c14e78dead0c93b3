"""Validation data on the driver, evaluated by Keras itself."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from distkeras_grid.engine.metric_state import as_numbers, declare_metrics
from distkeras_grid.engine.model_io import input_dtypes, pack_like_model
from distkeras_grid.errors import ConfigurationError
from distkeras_grid.feeding.arrays import (
    as_model_sees,
    features_from_arrow,
    numbers_from_arrow,
)
from distkeras_grid.feeding.row_cache import WEIGHT, sent_names
from distkeras_grid.feeding.source import ArraySource
from distkeras_grid.rows import RowBlock
from distkeras_grid.spark.columns import Columns
from distkeras_grid.spark.row_partitioner import worker_columns

if TYPE_CHECKING:
    import keras
    from numpy.typing import NDArray
    from pyspark.sql import DataFrame

    from distkeras_grid.feeding.schema import Field

# Rows of one evaluation step. It affects only memory and the progress line.
BATCH_ROWS = 256


def collect(frame: DataFrame, columns: Columns) -> ArraySource:
    """Bring the columns of a DataFrame with rows to the driver, as stored (uint8 stays uint8)."""
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    try:
        table = frame.select(*worker_columns(frame, columns)).toArrow().combine_chunks()
    except (Py4JJavaError, PySparkException) as error:
        if "maxResultSize" not in str(error):
            raise
        raise ConfigurationError(
            "The rows do not fit in spark.driver.maxResultSize of the driver. Pass a part of them, "
            "data.sample(0.1, seed=0), or raise that setting."
        ) from error
    batches = table.to_batches()
    features, labels = sent_names(columns.features, columns.labelled)
    described = zip(chain(features, labels), (*columns.features, *columns.labelled), strict=True)
    arrays = {
        name: _joined(features_from_arrow(batch.column(name), field) for batch in batches)
        for name, field in dict(described).items()
    }
    return ArraySource(
        [arrays[name] for name in features],
        [arrays[name] for name in labels],
        None
        if columns.weight is None
        else _joined(numbers_from_arrow(batch.column(WEIGHT), columns.weight) for batch in batches),
        fields=columns.features,
        label_fields=columns.labels,
    )


def evaluate(
    model: keras.Model,
    rows: ArraySource,
    callbacks: keras.callbacks.CallbackList | None = None,
) -> dict[str, float]:
    """Return a model's loss and metrics on rows, each with the prefix ``val_``.

    Each batch is read and scaled when it is needed, to save memory. Vectors are one number for each
    entry, as in training.
    """
    results = model.evaluate(
        _batches(rows, model), verbose=0, return_dict=True, callbacks=callbacks
    )
    return {f"val_{name}": value for name, value in as_numbers(results).items()}


def batch_of(
    model: keras.Model, fields: Sequence[Field], labels: Sequence[Field | None], block: RowBlock
) -> Any:
    """Return the first mini-batch of a block as ``fit`` takes it: features, labels, weights."""
    import keras

    dtypes = input_dtypes(model, len(fields))
    x = [
        as_model_sees(array[0], field, dtype)
        for array, field, dtype in zip(block.x, fields, dtypes, strict=True)
    ]
    labelled = iter(block.y)
    y = [None if label is None else _label_values(next(labelled)[0], label) for label in labels]
    weights = () if block.weight is None else (block.weight[0],)
    targets = pack_like_model(model, "output", y) if block.y else None
    return keras.utils.pack_x_y_sample_weight(pack_like_model(model, "input", x), targets, *weights)


def _label_values(values: NDArray[Any], label: Field) -> NDArray[Any]:
    return as_model_sees(values, label, values.dtype.name)


def prepare_metrics(model: keras.Model, columns: Columns) -> None:
    """Create the metrics of the driver's model, for the columns of a run."""
    x, y = (
        tuple(np.zeros((1, 1, *field.shape), field.dtype) for field in fields)
        for fields in (columns.features, columns.labelled)
    )
    weight = None if columns.weight is None else np.ones((1, 1), np.float32)
    data = batch_of(model, columns.features, columns.labels, RowBlock(x, y, weight))
    declare_metrics(model, data)


def _joined(parts: Iterable[NDArray[Any]]) -> NDArray[Any]:
    # A single part keeps Arrow's memory.
    arrays = list(parts)
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def _batches(rows: ArraySource, model: keras.Model) -> Any:
    """Return a Keras data set of the rows as the model sees them."""
    import keras

    class Scaled(keras.utils.PyDataset):  # type: ignore[misc]
        def __len__(self) -> int:
            return math.ceil(len(rows) / BATCH_ROWS)

        def __getitem__(self, number: int) -> Any:
            stop = min((number + 1) * BATCH_ROWS, len(rows))
            (block,) = rows.blocks([np.arange(number * BATCH_ROWS, stop)[np.newaxis]])
            return batch_of(model, rows.fields, rows.label_fields, block)

    return Scaled()
