"""Finds the columns that a model reads in a DataFrame, and says what their values are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from distkeras_grid.errors import EmptyDataError, SchemaError
from distkeras_grid.feeding.schema import METADATA_KEY, Field
from distkeras_grid.feeding.shapes import Port, inputs_of, match, match_labels, outputs_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

ArrowTask: TypeAlias = "Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]"

# What users give: one column, a list in the order of the model's inputs, or a dict by their names.
FeatureColumns: TypeAlias = str | Field | Sequence[Any] | Mapping[str, Any]
LabelColumns: TypeAlias = str | Field | Sequence[Any] | Mapping[str, Any] | None

NO_ROWS = "The data have no rows. Check the path and the filter."
# An input or output of a model that declares none.
ANY_PORT = Port("", ())

# Types whose numbers are sent as integers, with their names in Spark's SQL, which has none without
# a sign. Others become floats.
_INTEGERS = {"int32": "int", "int64": "bigint", "uint32": "bigint", "uint64": "bigint"}
# Spark's types of whole numbers, by their names in Python.
_WHOLE = ("byte", "short", "integer", "long", "boolean")


@dataclass(frozen=True)
class Columns:
    """The columns a run reads, resolved against one DataFrame."""

    # One for each input of the model, which sees ``value * scale + offset``
    features: tuple[Field, ...]
    # One for each output, None for an output without; empty for a model without labels
    labels: tuple[Field | None, ...]
    weight: str | None = None  # Name of the column of sample weights

    @property
    def labelled(self) -> tuple[Field, ...]:
        """The labels that there are, in the order of the outputs."""
        return tuple(label for label in self.labels if label is not None)


def resolve_columns(
    frame: DataFrame,
    features_col: FeatureColumns,
    label_col: LabelColumns,
    weight_col: str | None = None,
    *,
    model: Any = None,
    losses: Sequence[Any] | None = None,
) -> Columns:
    """Find and check the columns that a run reads. At most one row is read for each.

    `losses`: the loss of each output, None for an output that needs no label. By default all need
    one.
    """
    features = resolve_features(frame, features_col, model)
    outputs = outputs_of(model)
    matched = match_labels(label_col, outputs, losses)
    ports = outputs or (None,) * len(matched)
    labels = tuple(
        None if one is None else _resolve_label(frame, one, port, features)
        for one, port in zip(matched, ports, strict=bool(matched))
    )
    if weight_col is not None:
        kind = _column_type(frame, weight_col, "sample_weight_col")
        if not is_number(kind):
            raise SchemaError(
                f"sample_weight_col {weight_col!r} must be a number. Received: "
                f"{kind.simpleString()}."
            )
    return Columns(features, labels, weight_col)


def resolve_features(
    frame: DataFrame, features_col: FeatureColumns, model: Any = None
) -> tuple[Field, ...]:
    """Return the `Field` of each feature column, in the order of the model's inputs.

    It is the one given, or comes from the column's metadata. Arrays and Spark ML vectors need
    neither: their shape is that of the first row. Integers stay integers if the model's input has
    an integer type.
    """
    inputs = inputs_of(model)
    if not inputs and isinstance(features_col, list | tuple):
        # A class of the user's, which takes as many inputs as there are columns.
        return tuple(_resolve_feature(frame, column, ANY_PORT) for column in features_col)
    matched = match(features_col, inputs, "features_col")
    ports = inputs or (ANY_PORT,)
    return tuple(
        _resolve_feature(frame, column, port) for column, port in zip(matched, ports, strict=True)
    )


def _resolve_feature(frame: DataFrame, column: Any, port: Port) -> Field:
    field = _resolve(frame, column, port, "features_col")
    return replace(field, shape=(1,)) if not field.shape and column == field.name else field


def _resolve_label(
    frame: DataFrame, column: Any, port: Port | None, features: Sequence[Field]
) -> Field:
    """Return the description of a label; one that is a feature, too, has the feature's."""
    own = next((field for field in features if field.name == column), None)
    return own or _resolve(frame, column, port or ANY_PORT, "label_col")


def _resolve(frame: DataFrame, column: Any, port: Port, argument: str) -> Field:
    """Return what the values of a column are."""
    integers = port.dtype if argument == "features_col" else "int64"
    if isinstance(column, Field):
        kind = _column_type(frame, column.name, argument)
        if not (is_binary(kind) or _element(kind)):
            raise _unusable(argument, column.name, kind)
        return column
    kind = _column_type(frame, column, argument)
    metadata = frame.schema[column].metadata
    if METADATA_KEY in metadata and (is_binary(kind) or argument == "features_col"):
        return Field.from_metadata(column, metadata)
    if is_binary(kind):
        raise SchemaError(
            f"Column {column!r} is binary and has no metadata, so its shape is unknown. "
            f'Describe it: {argument}=Field("{column}", shape=(height, width, channels), '
            f'dtype="uint8", scale=1 / 255). Columns: {", ".join(frame.columns)}.'
        )
    if not _element(kind):
        raise _unusable(argument, column, kind)
    dtype = _dtype(kind, integers)
    return Field(column, () if is_number(kind) else _shape_of_first(frame, column), dtype)


def _shape_of_first(frame: DataFrame, name: str) -> tuple[int, ...]:
    """Return the shape of the array in the first row."""
    row: Any = _first(frame, name)
    shape = []
    while hasattr(row, "__len__"):
        shape.append(len(row))
        row = row[0] if len(row) else None
    return tuple(shape)


def _unusable(argument: str, name: str, kind: DataType) -> SchemaError:
    advice = (
        "Use a number, an array of numbers of one length, a Spark ML vector (VectorAssembler makes "
        "one of several columns), or binary with a Field."
    )
    if kind.typeName() in ("string", "varchar", "char"):
        advice = (
            "A model takes numbers: make integers of texts with pyspark.ml.feature.StringIndexer, "
            "or apply the model's StringLookup, TextVectorization or FeatureSpace to the column "
            "first, and build the model without it."
        )
    return SchemaError(
        f"{argument} {name!r} has a type that cannot be used. Received: {kind.simpleString()}. "
        f"{advice}"
    )


def _dtype(kind: DataType, integers: str) -> str:
    """Return the type in which numbers are sent: integers where both ends have them."""
    whole = _element(kind) in _WHOLE
    return integers if whole and integers in _INTEGERS else "float32"


def map_batches(frame: DataFrame, task: ArrowTask, schema: Any) -> DataFrame:
    """Return what a task makes of Arrow batches, as ``DataFrame.mapInArrow``.

    Spark looks the columns up by their names, and so does not find one with a dot.
    """
    names = list(frame.columns)

    def renamed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return task(batch.rename_columns(names) for batch in batches)

    plain = frame.toDF(*(f"column_{number}" for number in range(len(names))))
    return plain.mapInArrow(renamed, schema)


def value_expression(frame: DataFrame, field: Field) -> Column:
    """Return a column in the form that tasks read: binary, a number, or an array of numbers."""
    from pyspark.sql import functions as F

    element = _INTEGERS.get(field.dtype, "float")
    column = F.col(quoted(field.name))
    kind: Any = frame.schema[field.name].dataType
    if is_vector(kind):
        from pyspark.ml.functions import vector_to_array

        return vector_to_array(column, "float32")
    if is_binary(kind):
        return F.col(f"{quoted(field.name)}.bytes") if kind.typeName() == "struct" else column
    if is_number(kind):
        number = _cast(column, kind, element, field)
        return F.array(number) if field.shape else number
    while kind.elementType.typeName() == "array":
        column, kind = F.flatten(column), kind.elementType
    return _cast(column, kind, f"array<{element}>", field)


def _cast(column: Column, kind: DataType, wanted: str, field: Field) -> Column:
    """Cast numbers; those that an integer type of 32 bits does not hold are refused by name."""
    from pyspark.sql import functions as F

    element = _element(kind)
    if field.dtype != "int32" or element != "long":
        return column.cast(wanted)

    def outside(value: Column) -> Column:
        return ~value.between(-(2**31), 2**31 - 1)

    wrong = (
        f"Column {field.name!r} has whole numbers beyond 32 bits, and the model's input is int32. "
        'Build the model with keras.Input(..., dtype="int64"), or number the values anew '
        "(pyspark.ml.feature.StringIndexer)."
    )
    is_outside = outside(column) if is_number(kind) else F.exists(column, outside)
    error = F.raise_error(wrong).cast(wanted)
    return F.when(F.coalesce(is_outside, F.lit(False)), error).otherwise(column.cast(wanted))


def quoted(name: str) -> str:
    """Return a column name in back quotes, so that a dot in it does not access a struct."""
    return "`" + name.replace("`", "``") + "`"


def is_binary(kind: Any) -> bool:
    """Whether the type is binary, or the ``struct<bytes, path>`` of encoded images."""
    if kind.typeName() == "struct":
        return "bytes" in kind.names and is_binary(kind["bytes"].dataType)
    return bool(kind.typeName() == "binary")


def is_vector(kind: DataType) -> bool:
    """Whether the type is a Spark ML vector."""
    return type(kind).__name__ == "VectorUDT"


def is_number(kind: DataType) -> bool:
    """Whether the type is a number; booleans count as 0 and 1."""
    return kind.typeName() in (*_WHOLE, "float", "double", "decimal")


def is_number_array(kind: Any) -> bool:
    """Whether the type is an array of numbers."""
    return bool(kind.typeName() == "array" and is_number(kind.elementType))


def _element(kind: Any) -> str:
    """Return the type of the numbers in a column, as Spark names it; "" if it has none."""
    if is_vector(kind):
        return "float"
    while kind.typeName() == "array":
        kind = kind.elementType
    return str(kind.typeName()) if is_number(kind) else ""


def _column_type(frame: DataFrame, name: str, argument: str) -> DataType:
    if name not in frame.columns:
        import difflib

        near = difflib.get_close_matches(name, frame.columns, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        described = [each.name for each in frame.schema if METADATA_KEY in each.metadata]
        if argument == "features_col" and described:
            hint = (
                f" {described[0]!r} has metadata of a feature column: set "
                f"features_col={described[0]!r} (--features {described[0]})."
            )
        if argument == "label_col":
            hint += " A model that needs no labels has label_col=None."
        raise SchemaError(
            f"{argument} {name!r} is not a column of the data.{hint} "
            f"Columns: {', '.join(frame.columns)}."
        )
    return frame.schema[name].dataType


def _first(frame: DataFrame, name: str) -> Any:
    """Return the value of a column in the first row."""
    row = frame.select(quoted(name)).first()
    if row is None:
        raise EmptyDataError(NO_ROWS)
    if row[0] is None:
        raise SchemaError(
            f"Column {name!r} has no value in its first row, so its length is unknown. Drop such "
            f'rows: df.where("{quoted(name)} is not null").'
        )
    return row[0]
