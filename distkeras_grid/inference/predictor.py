"""A model's predictions as one more column of a DataFrame.

The driver checks and describes; executors compute. What travels is the model as a ``.keras``
archive in a Spark broadcast, fetched only by Python workers that do not hold the model already,
and the rows as Arrow batches.
"""

from __future__ import annotations

import hashlib
import uuid
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from distkeras_grid.errors import ConfigurationError, SchemaError
from distkeras_grid.feeding.schema import Field
from distkeras_grid.feeding.shapes import check_fit

if TYPE_CHECKING:
    import keras
    import pyarrow as pa
    from pyspark import Broadcast
    from pyspark.sql import DataFrame

# Two, so that two models in one query do not drive each other out of a Python worker.
MODELS_KEPT = 2


class ModelPredictor:
    """Adds a model's predictions to a DataFrame.

    Parameters
    ----------
    keras_model : keras.Model
        Built, with one input and one output; any model that Keras can save.
    features_col : str or Field, default "features"
        The feature column, as in training: a name where the column's metadata or type describe
        it, else a `Field`. The model sees the values scaled as in training.
    output_col : str, default "prediction"
        The new column: ``array<float>``, the model's output of the row, flattened.
    batch_size : int, default 256
        Rows that the model sees at once; bounds the memory of a task.
    custom_objects : mapping of str to object, optional
        The user's own layers, losses and metrics by name.

    Examples
    --------
    >>> predictor = ModelPredictor(model, features_col="image")  # doctest: +SKIP
    >>> predictor.predict(test_tiles).select("source", "prediction")  # doctest: +SKIP
    DataFrame[source: string, prediction: array<float>]
    """

    def __init__(
        self,
        keras_model: keras.Model,
        features_col: str | Field = "features",
        output_col: str = "prediction",
        batch_size: int = 256,
        custom_objects: Mapping[str, Any] | None = None,
    ) -> None:
        if batch_size < 1:
            raise ConfigurationError(f"batch_size must be at least 1, got {batch_size}")
        self.keras_model = keras_model
        self.features_col = features_col
        self.output_col = output_col
        self.batch_size = batch_size
        self.custom_objects = dict(custom_objects or {})

    def predict(self, df: DataFrame) -> DataFrame:
        """Return the DataFrame with the new column; computed when Spark needs it.

        Parameters
        ----------
        df : pyspark.sql.DataFrame
            With the feature column; its other columns and their metadata are kept.

        Returns
        -------
        pyspark.sql.DataFrame
            All columns of `df`, and the predictions.

        Raises
        ------
        SchemaError
            If the feature column is missing, cannot be used or does not fit the model, or the
            output column exists already.
        ConfigurationError
            If the model cannot be saved, has several inputs or outputs, or `df` comes from Spark
            Connect.
        EnvironmentMismatchError
            If executors lack TensorFlow or have another version.
        """
        from pyspark.sql.types import ArrayType, FloatType, StructField, StructType

        from distkeras_grid.engine.keras_model import model_to_bytes
        from distkeras_grid.spark.dataframes import as_dataframe, resolve_features
        from distkeras_grid.spark.interpreters import check_executors
        from distkeras_grid.spark.session import active_session

        spark = active_session()
        df = as_dataframe(spark, df, "df")
        if self.output_col in df.columns:
            raise SchemaError(
                f"the data have a column {self.output_col!r} already; choose another output_col, "
                f"or drop it: df.drop({self.output_col!r}). Columns: {', '.join(df.columns)}"
            )
        field = resolve_features(df, self.features_col)
        check_fit(self.keras_model, field)
        check_executors(spark)
        archive = model_to_bytes(self.keras_model)
        columns, position, added = _with_features(df, field)
        plan = PredictionPlan(
            key=_key(archive, self.custom_objects),
            archive=spark.sparkContext.broadcast(archive),
            custom_objects=self.custom_objects,
            field=field,
            position=position,
            added=added,
            output_col=self.output_col,
            batch_size=self.batch_size,
        )
        output = StructField(self.output_col, ArrayType(FloatType(), containsNull=False), False)
        schema = StructType([*df.schema.fields, output])
        return columns.mapInArrow(partial(predict_batches, plan), schema)


@dataclass(frozen=True)
class PredictionPlan:
    """What a task must know to predict; travels in its closure.

    Parameters
    ----------
    key : str
        Under which a Python worker keeps the model.
    archive : Broadcast of bytes
        The model, as ``.keras``.
    custom_objects : mapping of str to object
        The user's own classes and functions.
    field : Field
        The feature column.
    position : int
        Of the feature column in the batches.
    added : bool
        Whether that column was added for this and is not handed on.
    output_col : str
        Name of the new column.
    batch_size : int
        Rows the model sees at once.
    """

    key: str
    archive: Broadcast[bytes]
    custom_objects: Mapping[str, Any]
    field: Field
    position: int
    added: bool
    output_col: str
    batch_size: int


def predict_batches(
    plan: PredictionPlan, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Predict the rows of one partition; what Spark runs on an executor.

    Parameters
    ----------
    plan : PredictionPlan
        The same for every task.
    batches : iterator of pyarrow.RecordBatch
        Rows of the partition; there may be none.

    Yields
    ------
    pyarrow.RecordBatch
        The same rows with their predictions, at most `batch_size` at a time.
    """
    import pyarrow as pa

    from distkeras_grid.feeding.arrays import features_from_arrow

    for batch in batches:
        for start in range(0, batch.num_rows, plan.batch_size):
            part = batch.slice(start, plan.batch_size)
            column = part.column(plan.position)
            if pa.types.is_struct(column.type):
                # Flattened and not `field`, which leaves out the nulls and offset of the struct.
                column = column.flatten()[column.type.get_field_index("bytes")]
            features = scaled(features_from_arrow(column, plan.field), plan.field)
            outputs = _model_of(plan).predict_on_batch(features)
            kept = part.num_columns - plan.added
            arrays = [*part.columns[:kept], as_lists(outputs, len(features))]
            yield pa.RecordBatch.from_arrays(arrays, [*part.schema.names[:kept], plan.output_col])


def scaled(values: npt.NDArray[Any], field: Field) -> npt.NDArray[Any]:
    """Return what the model sees, as the training engine computes it.

    Parameters
    ----------
    values : ndarray, shape (n, *field.shape)
        As stored.
    field : Field
        With the scaling.

    Returns
    -------
    ndarray
        ``values * scale + offset`` as float32; `values` themselves where that changes nothing,
        for whole numbers may be indices.
    """
    if (field.scale, field.offset) == (1.0, 0.0):
        return values
    return values.astype(np.float32) * np.float32(field.scale) + np.float32(field.offset)


def as_lists(outputs: Any, rows: int) -> pa.ListArray:
    """Return the model's output as an Arrow array of lists of float32.

    Parameters
    ----------
    outputs : ndarray, shape (rows, ...)
        What ``predict_on_batch`` returned.
    rows : int
        Rows that went in.

    Raises
    ------
    ConfigurationError
        If the model has several outputs, or not one for each row.
    """
    import pyarrow as pa

    if not isinstance(outputs, np.ndarray) or outputs.shape[:1] != (rows,):
        raise ConfigurationError(
            "the model must return one array with a row for each row of the data; it returned "
            f"{getattr(outputs, 'shape', type(outputs).__name__)} for {rows} rows"
        )
    flat = np.ascontiguousarray(outputs, dtype=np.float32).reshape(rows, -1)
    offsets = np.arange(rows + 1, dtype=np.int32) * np.int32(flat.shape[1])
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(flat.ravel()))


def _with_features(df: DataFrame, field: Field) -> tuple[DataFrame, int, bool]:
    """Return the columns that tasks read, where the features are, and whether they were added.

    Bytes are read where they stand; a second column of them would double what Spark moves.
    """
    from distkeras_grid.spark.dataframes import feature_expression, is_binary

    if is_binary(df.schema[field.name].dataType):
        return df, df.columns.index(field.name), False
    columns = df.select("*", feature_expression(df, field).alias("_features"))
    return columns, len(df.columns), True


def _key(archive: bytes, custom_objects: Mapping[str, Any]) -> str:
    # The code of custom objects may change under the same name: they are loaded for each query.
    return uuid.uuid4().hex if custom_objects else hashlib.sha256(archive).hexdigest()


_models: OrderedDict[str, Any] = OrderedDict()


def _model_of(plan: PredictionPlan) -> Any:
    """Return the model, loaded once in a Python worker, which lives on from task to task."""
    if plan.key not in _models:
        from pyspark import TaskContext

        from distkeras_grid.engine.keras_model import model_from_bytes
        from distkeras_grid.engine.loading import prepare_process

        context = TaskContext.get()
        prepare_process(context.cpus() if context is not None else 1)
        _models[plan.key] = model_from_bytes(plan.archive.value, plan.custom_objects)
        while len(_models) > MODELS_KEPT:
            _models.popitem(last=False)
    _models.move_to_end(plan.key)
    return _models[plan.key]
