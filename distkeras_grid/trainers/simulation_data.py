"""The rows of a simulated run: arrays, or collected data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from distkeras_grid.errors import DataError
from distkeras_grid.feeding.schema import DTYPES, Field
from distkeras_grid.feeding.shapes import (
    Port,
    check_fit,
    inputs_of,
    match,
    match_labels,
    outputs_of,
)
from distkeras_grid.feeding.source import ArraySource
from distkeras_grid.feeding.targets import LabelSummary
from distkeras_grid.spark.columns import Columns, resolve_columns
from distkeras_grid.spark.dataframes import as_dataframe
from distkeras_grid.spark.row_partitioner import DataSummary
from distkeras_grid.spark.session import active_session
from distkeras_grid.spec import DataSpec, RunSpec
from distkeras_grid.trainers.data_checks import inspect_training, inspect_validation, naming
from distkeras_grid.trainers.labels import check_labels, fitted, needs_of, takes_of
from distkeras_grid.trainers.spec_builder import (
    described_fields,
    described_labels,
)
from distkeras_grid.trainers.validation import collect

if TYPE_CHECKING:
    import keras
    from numpy.typing import NDArray
    from pyspark.sql import DataFrame

    from distkeras_grid.trainers.config import TrainerConfig, TrainingData


def deal(rows: ArraySource, spec: RunSpec) -> list[ArraySource]:
    """Return the rows of each worker: mixed by the seed of the run, or consecutive."""
    places = np.arange(len(rows))
    if spec.schedule.shuffle:
        places = np.random.default_rng(spec.schedule.seed).permutation(places)
    return [rows.part(part) for part in np.array_split(places, spec.workers)]


def read_data(
    config: TrainerConfig, request: TrainingData, model: keras.Model
) -> tuple[ArraySource, DataSpec, ArraySource | None]:
    """Return rows, their part of the run, and validation rows, all in this process."""
    if isinstance(request.data, tuple | list):
        rows, summary = _from_arrays(request.data, model)
    else:
        frame = as_dataframe(active_session(), request.data)
        columns = _resolved(frame, config, model)
        summary = inspect_training(frame, columns, model)
        rows = collect(frame, columns)
    spec = DataSpec(
        features=described_fields(rows.fields),
        labels=described_labels(rows.label_fields),
    )
    if request.validation_data is None:
        return rows, spec, None
    with naming("validation_data"):
        return rows, spec, _read_validation(config, request.validation_data, model, summary)


def _read_validation(
    config: TrainerConfig, data: Any, model: keras.Model, training: DataSummary
) -> ArraySource:
    """Bring the validation data into this process."""
    if isinstance(data, tuple | list):
        return _from_arrays(data, model)[0]
    frame = as_dataframe(active_session(), data, "validation_data")
    columns = _resolved(frame, config, model)
    inspect_validation(frame, columns, model, training)
    return collect(frame, columns)


def _resolved(frame: DataFrame, config: TrainerConfig, model: keras.Model) -> Columns:
    """Return the columns of a DataFrame, as the model takes them."""
    columns = resolve_columns(
        *(frame, config.features_col, config.label_col),
        model=model,
        losses=needs_of(model, model.loss),
    )
    check_fit(model, columns.features)
    return fitted(columns, model)


def _from_arrays(data: Any, model: keras.Model) -> tuple[ArraySource, DataSummary]:
    if len(data) not in (2, 3):
        raise DataError(
            "Arrays are (features, labels) or (features, labels, sample weights), and labels may "
            f"be None. Received: {len(data)} items."
        )
    inputs, outputs = inputs_of(model), outputs_of(model)
    features = _arrays(data[0], inputs, "features")
    by_output = _labels(data[1], outputs, needs_of(model, model.loss))
    labels = tuple(each for each in by_output if each is not None)
    weights = tuple(_sample_weights(each) for each in data[2:])
    _check_lengths((*features, *labels, *weights))
    fields = tuple(_field(*named) for named in _named(inputs, features, "features"))
    check_fit(model, fields)
    described = tuple(
        None if array is None else _field(name, array)
        for name, array in _named(outputs, by_output, "label")
    )
    columns = fitted(Columns(fields, described), model)
    pairs = zip(labels, takes_of(columns, model), strict=True)
    numbers = tuple(LabelSummary.of(array, takes) for array, takes in pairs)
    count = len(features[0])
    summary = DataSummary(count, ((0, count),), numbers, ())
    check_labels(columns, summary, model)
    rows = ArraySource(
        features,
        [
            array.reshape(count, *label.shape)
            for array, label in zip(labels, columns.labelled, strict=True)
        ],
        weights[0] if weights else None,
        fields=fields,
        label_fields=columns.labels,
    )
    return rows, summary


def array_shapes(data: Any) -> list[tuple[int, ...]]:
    """Return the shape of a row of each array of features; nothing for data of another kind."""
    if not isinstance(data, tuple | list) or not data:
        return []
    features = data[0]
    if isinstance(features, Mapping):
        features = list(features.values())
    arrays = isinstance(features, list | tuple)
    several = arrays and all(isinstance(each, np.ndarray) for each in features)
    return [np.shape(array)[1:] for array in (features if several else [features])]


def _arrays(data: Any, ports: Sequence[Port], what: str) -> tuple[NDArray[Any], ...]:
    # For a model with one, a list is the array's content.
    several = len(ports) > 1 or isinstance(data, Mapping)
    items = match(data, ports, what) if several else (data,)
    if not ports and isinstance(data, list | tuple) and hasattr(data[0], "shape"):
        # A class of the user's, which takes as many inputs as there are arrays.
        items = tuple(data)
    return tuple(np.asarray(item) for item in items)


def _labels(
    labels: Any, outputs: Sequence[Port], losses: Sequence[Any]
) -> tuple[NDArray[Any] | None, ...]:
    """Return the labels of each output, None for one without; nothing if none has any."""
    several = len(outputs) > 1 or isinstance(labels, Mapping) or labels is None
    items = match_labels(labels if several else [labels], outputs, losses)
    return tuple(None if item is None else _numbers(item) for item in items)


def _numbers(labels: Any) -> NDArray[Any]:
    array = np.asarray(labels)
    # As fit takes them.
    kinds = {"float64": np.float32, "bool": np.uint8}
    return array.astype(kinds.get(array.dtype.name, array.dtype), copy=False)


def _sample_weights(values: Any) -> NDArray[np.float32]:
    weights = np.asarray(values, np.float32)
    unusable = ~((weights >= 0) & (weights < np.inf))
    if weights.ndim != 1 or unusable.any():
        raise DataError(
            "Sample weights are one finite number of at least 0 for each row. Received: shape "
            f"{weights.shape}, {unusable.sum()} of {weights.size} null, NaN, infinite or negative."
        )
    return weights


def _check_lengths(arrays: Sequence[NDArray[Any]]) -> None:
    lengths = [len(array) if array.ndim else 0 for array in arrays]
    if len(set(lengths)) != 1 or lengths[0] == 0:
        raise DataError(
            "Arrays of features, labels and sample weights have the same number of rows, at least "
            f"1. Received lengths: {lengths}."
        )


def _named(ports: Sequence[Port], arrays: Sequence[Any], one: str) -> Iterator[tuple[str, Any]]:
    """Return arrays with the names of the model's inputs or outputs, if it has several."""
    names = [one] * len(arrays)
    if len(arrays) > 1:
        names = [port.name for port in ports] or [f"{one}_{n}" for n in range(len(arrays))]
    return zip(names, arrays, strict=True)


def _field(name: str, array: NDArray[Any]) -> Field:
    if array.dtype.name not in DTYPES:
        raise DataError(
            f"Arrays are of one of {', '.join(DTYPES)}. Received: {array.dtype} for {name!r}."
        )
    return Field(name, array.shape[1:], array.dtype.name)
