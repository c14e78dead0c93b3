"""Adds a model's predictions to a DataFrame, as new columns.

The driver checks the request; executors compute the predictions. The model travels as a ``.keras``
archive in a Spark broadcast, which only Python workers without the model fetch. Rows travel as
Arrow batches.
"""

from __future__ import annotations

import hashlib
import uuid
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from distkeras_grid.engine.custom_objects import serializable_objects
from distkeras_grid.errors import ConfigurationError, SchemaError
from distkeras_grid.feeding.schema import Field
from distkeras_grid.feeding.shapes import Port, check_fit, match, outputs_of

if TYPE_CHECKING:
    import keras
    import pyarrow as pa
    from pyspark import Broadcast
    from pyspark.sql import Column, DataFrame, SparkSession

    from distkeras_grid.spark.columns import FeatureColumns

# Two, so that two models in one query do not evict each other from a Python worker.
MAX_MODELS = 2


class ModelPredictor:
    """Adds a model's predictions to a DataFrame.

    Parameters
    ----------
    keras_model : keras.Model
        A built model that Keras can save.
    features_col : str, Field, list or dict, default "features"
        The feature column, as in training: a name if the column's metadata or type describe it,
        else a `Field`. For several inputs, a list in the model's order, or a dict by input name.
        The model sees the values scaled as in training.
    output_col : str, list or dict, default "prediction"
        The new column: ``array<float>``, the model's output for the row, flattened. Several
        outputs give one column each, named ``<output_col>_<output>``, or as a list or dict says.
    batch_size : int, default 256
        Rows in one call of the model; bounds the memory of a task.
    custom_objects : mapping of str to object, optional
        The user's own layers, losses and metrics by name. By default those of the trainer that
        returned the model. Classes that are registered with Keras need not be named.

    Examples
    --------
    >>> predictor = ModelPredictor(model, features_col="image")  # doctest: +SKIP
    >>> predictor.predict(test_tiles).select("source", "prediction")  # doctest: +SKIP
    DataFrame[source: string, prediction: array<float>]
    """

    def __init__(
        self,
        keras_model: keras.Model,
        features_col: FeatureColumns = "features",
        output_col: str | Sequence[str] | Mapping[str, str] = "prediction",
        batch_size: int = 256,
        custom_objects: Mapping[str, Any] | None = None,
    ) -> None:
        if batch_size < 1:
            raise ConfigurationError(f"batch_size must be at least 1. Received: {batch_size}.")
        self.keras_model = keras_model
        self.features_col = features_col
        self.output_col = output_col
        self.batch_size = batch_size
        self.custom_objects = dict(custom_objects or {})

    def predict(self, df: DataFrame) -> DataFrame:
        """Return the DataFrame with the new columns; Spark computes them lazily.

        Parameters
        ----------
        df : pyspark.sql.DataFrame
            Rows with the feature columns. Other columns and their metadata are kept.

        Returns
        -------
        pyspark.sql.DataFrame
            All columns of `df`, and those of the predictions.

        Raises
        ------
        SchemaError
            If a feature column is missing, cannot be used or does not fit the model, or an output
            column exists already.
        ConfigurationError
            If the model cannot be saved or needs custom objects that are not given, an input or
            output has no column, or `df` comes from Spark Connect.
        EnvironmentMismatchError
            If executors lack the backend of Keras or have another version.
        """
        from pyspark.sql.types import ArrayType, FloatType, StructField, StructType

        from distkeras_grid.spark.columns import map_batches, resolve_features
        from distkeras_grid.spark.dataframes import as_dataframe
        from distkeras_grid.spark.session import active_session

        spark = active_session()
        df = as_dataframe(spark, df, "df")
        ports = outputs_of(self.keras_model)
        output_cols = output_columns(self.output_col, ports)
        for name in output_cols:
            if name in df.columns:
                raise SchemaError(
                    f"The data have a column {name!r} already. Choose another output_col, or drop "
                    f"it: df.drop({name!r}). Columns: {', '.join(df.columns)}."
                )
        fields = resolve_features(df, self.features_col, self.keras_model)
        check_fit(self.keras_model, fields)
        model = ship_model(spark, self.keras_model, self.custom_objects)
        columns, places, added = _with_features(df, fields)
        plan = PredictionPlan(model, fields, places, added, output_cols, self.batch_size)
        kind = ArrayType(FloatType(), containsNull=False)
        outputs = [
            StructField(name, kind, nullable=False, metadata=_meaning(name, port, fields))
            for name, port in zip(output_cols, ports or (None,) * len(output_cols), strict=True)
        ]
        schema = StructType([*df.schema.fields, *outputs])
        return map_batches(columns, partial(predict_batches, plan), schema)


@dataclass(frozen=True)
class ShippedModel:
    """A model as tasks load it; it travels in their closures."""

    key: str  # Key under which a Python worker caches the model
    archive: Broadcast[bytes]  # The model, as ``.keras``
    custom_objects: Mapping[str, Any]  # The user's own classes and functions
    backend: str  # The backend of Keras on the driver

    def load(self) -> Any:
        """Return a new copy of the model, in a task."""
        from pyspark import TaskContext

        from distkeras_grid.engine.keras_model import model_from_bytes
        from distkeras_grid.engine.registry import use_backend

        context = TaskContext.get()
        use_backend(self.backend, context.cpus() if context is not None else 1)
        return model_from_bytes(self.archive.value, self.custom_objects)


def ship_model(
    spark: SparkSession, model: keras.Model, custom_objects: Mapping[str, Any]
) -> ShippedModel:
    """Broadcast a model, and check that executors can load it."""
    from distkeras_grid.engine.keras_model import model_to_bytes
    from distkeras_grid.engine.registry import current_backend
    from distkeras_grid.spark.interpreters import (
        check_executors,
        ship_backend,
        training_packages,
    )

    archive = model_to_bytes(model)
    objects = serializable_objects(archive, custom_objects)
    backend = current_backend()
    ship_backend(spark, backend)
    check_executors(spark, training_packages(backend))
    # The code of custom objects may change under the same name, so they are loaded for each query.
    key = uuid.uuid4().hex if objects else hashlib.sha256(archive).hexdigest()
    return ShippedModel(key, spark.sparkContext.broadcast(archive), objects, backend)


@dataclass(frozen=True)
class PredictionPlan:
    """What a task must know to predict; it travels in the task's closure."""

    model: ShippedModel
    fields: tuple[Field, ...]  # The feature columns, in the order of the model's inputs
    places: tuple[int, ...]  # Positions of these columns in the batches
    # Number of trailing columns that were added for prediction and are dropped afterwards
    added: int
    output_cols: tuple[str, ...]  # Names of the new columns, in the order of the model's outputs
    batch_size: int  # Rows in one call of the model


def predict_batches(
    plan: PredictionPlan, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Predict the rows of one partition; Spark runs this on an executor.

    `batches`: rows of the partition; there may be none.
    """
    import pyarrow as pa

    for batch in batches:
        for start in range(0, batch.num_rows, plan.batch_size):
            part = batch.slice(start, plan.batch_size)
            stop = part.num_columns - plan.added
            arrays = [*part.columns[:stop], *_predicted(plan, part)]
            names = [*part.schema.names[:stop], *plan.output_cols]
            yield pa.RecordBatch.from_arrays(arrays, names)


def _predicted(plan: PredictionPlan, part: pa.RecordBatch) -> list[pa.ListArray]:
    """Return the model's outputs for some rows."""
    # This comes first: it prepares the process in which Keras is imported.
    model = _loaded(plan.model)
    import keras

    inputs = model_inputs(model, plan.fields, [part.column(place) for place in plan.places])
    outputs = keras.tree.flatten(model.predict_on_batch(inputs))
    if len(outputs) != len(plan.output_cols):
        raise ConfigurationError(
            f"The model gives {len(outputs)} outputs. Received: {len(plan.output_cols)} columns, "
            f"{', '.join(plan.output_cols)}. Name a column for each output: output_col=[...]."
        )
    return [as_lists(output, part.num_rows) for output in outputs]


def model_inputs(model: Any, fields: Sequence[Field], columns: Sequence[pa.Array]) -> Any:
    """Return columns of a batch as a model's inputs, scaled as in training."""
    import pyarrow as pa

    from distkeras_grid.engine.model_io import input_dtypes, pack_like_model
    from distkeras_grid.feeding.arrays import as_model_sees, features_from_arrow

    inputs = []
    for column, field, dtype in zip(columns, fields, input_dtypes(model, len(fields)), strict=True):
        # Flattened and not `field`, which leaves out the nulls and offset of the struct.
        values = (
            column.flatten()[column.type.get_field_index("bytes")]
            if pa.types.is_struct(column.type)
            else column
        )
        inputs.append(as_model_sees(features_from_arrow(values, field), field, dtype))
    return pack_like_model(model, "input", inputs)


def output_columns(output_col: Any, outputs: Sequence[Port]) -> tuple[str, ...]:
    """Return the names of the new columns, in the order of the model's outputs.

    Examples
    --------
    >>> output_columns("prediction", (Port("kind", (3,)), Port("age", (1,))))
    ('prediction_kind', 'prediction_age')
    """
    if isinstance(output_col, str) and len(outputs) > 1:
        names = tuple(f"{output_col}_{port.name}" for port in outputs)
    elif not outputs and isinstance(output_col, (list, tuple)):
        names = tuple(output_col)  # Keras knows the outputs of such a model only when it is called.
    else:
        names = match(output_col, outputs, "output_col")
    if len(set(names)) < len(names):
        raise ConfigurationError(
            f"Each output needs a column of its own. Received: {', '.join(names)}. Give output_col "
            "as a list of different names."
        )
    return names


def _meaning(name: str, port: Port | None, fields: Sequence[Field]) -> dict[str, Any]:
    """Return the metadata of a new column: the class names, if the features give them.

    An output whose size is not the number of classes predicts something else.
    """
    size = None if port is None else port.size
    for field in fields:
        if field.classes and (
            size == len(field.classes) or (size == 1 and len(field.classes) == 2)
        ):
            described = Field(name, shape=(size,), dtype="float32", classes=field.classes)
            return described.to_metadata()
    return {}


def as_lists(outputs: Any, rows: int) -> pa.ListArray:
    """Return the model's output as an Arrow array of lists of float32.

    `outputs`: one output of ``predict_on_batch``; shape (rows, ...).
    """
    import pyarrow as pa

    if not isinstance(outputs, np.ndarray) or outputs.shape[:1] != (rows,):
        raise ConfigurationError(
            "A model's output must have a row for each row of the data. Received: "
            f"{getattr(outputs, 'shape', type(outputs).__name__)} for {rows} rows."
        )
    flat = np.ascontiguousarray(outputs, dtype=np.float32).reshape(rows, -1)
    offsets = np.arange(rows + 1, dtype=np.int32) * np.int32(flat.shape[1])
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(flat.ravel()))


def _with_features(
    df: DataFrame, fields: Sequence[Field]
) -> tuple[DataFrame, tuple[int, ...], int]:
    """Return the columns that tasks read, the places of the features, and how many were added.

    Bytes are read where they stand; a second column of them would double what Spark moves.
    """
    from distkeras_grid.spark.columns import is_binary, value_expression

    places: list[int] = []
    added: list[Column] = []
    for field in fields:
        if is_binary(df.schema[field.name].dataType):
            places.append(df.columns.index(field.name))
            continue
        places.append(len(df.columns) + len(added))
        added.append(value_expression(df, field).alias(f"_features_{len(added)}"))
    return (df.select("*", *added) if added else df), tuple(places), len(added)


_models: OrderedDict[str, Any] = OrderedDict()


def _loaded(model: ShippedModel) -> Any:
    """Return the model, loaded once in a Python worker, which lives on from task to task."""
    if model.key not in _models:
        _models[model.key] = model.load()
        while len(_models) > MAX_MODELS:
            _models.popitem(last=False)
    _models.move_to_end(model.key)
    return _models[model.key]
