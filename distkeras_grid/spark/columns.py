"""Finds the columns that a model reads in a DataFrame, and says what their values are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from distkeras_grid.errors import SchemaError
from distkeras_grid.feeding.schema import METADATA_KEY, Field
from distkeras_grid.feeding.shapes import inputs_of, match, outputs_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

# What users give: one column, a list in the order of the model's inputs, or a dict by their names.
FeatureColumns: TypeAlias = str | Field | Sequence[str | Field] | Mapping[str, str | Field]
LabelColumns: TypeAlias = str | Sequence[str] | Mapping[str, str]

# Types whose numbers are sent as integers, with their names in Spark's SQL, which has none without
# a sign. Others become floats.
_INTEGERS = {"int32": "int", "int64": "bigint", "uint32": "bigint", "uint64": "bigint"}


@dataclass(frozen=True)
class Label:
    """A label column.

    Parameters
    ----------
    name : str
        Its name.
    size : int or None
        Length of a label that is an array, None for a number.
    integer : bool
        Whether its numbers are integers.
    """

    name: str
    size: int | None
    integer: bool


@dataclass(frozen=True)
class Columns:
    """The columns a run reads, resolved against one DataFrame.

    Parameters
    ----------
    features : tuple of Field
        One for each input of the model, which sees ``value * scale + offset``.
    labels : tuple of Label
        One for each output.
    weight : str or None
        Name of the column of sample weights.
    """

    features: tuple[Field, ...]
    labels: tuple[Label, ...]
    weight: str | None = None

    @property
    def row_bytes(self) -> int:
        """Bytes of the features of one row."""
        return sum(field.nbytes for field in self.features)


def resolve_columns(
    frame: DataFrame,
    features_col: FeatureColumns,
    label_col: LabelColumns,
    weight_col: str | None = None,
    *,
    model: Any = None,
) -> Columns:
    """Find and check the columns that a run reads. At most one row is read for each.

    Parameters
    ----------
    frame : DataFrame
        The data.
    features_col, label_col : str, Field, list or dict
        As in `distkeras_grid.feeding.shapes.match`.
    weight_col : str, optional
        Column of sample weights.
    model : keras.Model, optional
        The model that takes the columns. If it declares no inputs and outputs, it has one of each.

    Raises
    ------
    ConfigurationError
        If an input or an output has no column.
    SchemaError
        If a column is missing or has a type that cannot be used.
    """
    features = resolve_features(frame, features_col, model)
    names = match(label_col, outputs_of(model), "label_col")
    labels = tuple(_resolve_label(frame, name) for name in names)
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
    neither; their length is that of the first row. Integers stay integers if the model's input has
    an integer type.

    Raises
    ------
    ConfigurationError
        If an input has no column.
    SchemaError
        If a column is missing, or is binary and has neither metadata nor a `Field`.
    """
    inputs = inputs_of(model)
    given = match(features_col, inputs, "features_col")
    dtypes = [port.dtype for port in inputs] or ["float32"]
    return tuple(
        _resolve_feature(frame, column, dtype) for column, dtype in zip(given, dtypes, strict=True)
    )


def _resolve_feature(frame: DataFrame, features_col: str | Field, wanted: str) -> Field:
    name = features_col.name if isinstance(features_col, Field) else features_col
    kind = _column_type(frame, name, "features_col")
    if isinstance(features_col, Field):
        return features_col
    metadata = frame.schema[name].metadata
    if METADATA_KEY in metadata:
        return Field.from_metadata(name, metadata)
    if is_binary(kind):
        raise SchemaError(
            f"Column {name!r} is binary and has no metadata, so its shape is unknown. "
            f'Describe it: features_col=Field("{name}", shape=(height, width, channels), '
            f'dtype="uint8", scale=1 / 255). Columns: {", ".join(frame.columns)}.'
        )
    dtype = wanted if wanted in _INTEGERS and _holds_integers(kind) else "float32"
    if is_number(kind):
        return Field(name, shape=(1,), dtype=dtype)
    if is_vector(kind) or is_number_array(kind):
        return Field(name, shape=(_first_length(frame, name),), dtype=dtype)
    raise SchemaError(
        f"features_col {name!r} has a type that cannot be used. Received: {kind.simpleString()}. "
        "Use a number, an array of numbers, a Spark ML vector or binary."
    )


def feature_expression(frame: DataFrame, field: Field) -> Column:
    """Return the column in the form that tasks read: binary, or an array of floats or integers."""
    from pyspark.sql import functions as F

    column = F.col(quoted(field.name))
    kind = frame.schema[field.name].dataType
    if is_vector(kind):
        from pyspark.ml.functions import vector_to_array

        return vector_to_array(column, "float32")
    if is_binary(kind):
        return F.col(f"{quoted(field.name)}.bytes") if kind.typeName() == "struct" else column
    element = _INTEGERS.get(field.dtype, "float")
    if is_number(kind):
        return F.array(column.cast(element))
    return column.cast(f"array<{element}>")


def quoted(name: str) -> str:
    """Return a column name in back quotes, so that a dot in it does not access a struct."""
    return "`" + name.replace("`", "``") + "`"


def is_binary(kind: DataType) -> bool:
    """Whether the type is binary, or the ``struct<bytes, path>`` of encoded images."""
    from pyspark.sql.types import BinaryType, StructType

    if isinstance(kind, StructType):
        return "bytes" in kind.names and isinstance(kind["bytes"].dataType, BinaryType)
    return isinstance(kind, BinaryType)


def is_vector(kind: DataType) -> bool:
    """Whether the type is a Spark ML vector."""
    return type(kind).__name__ == "VectorUDT"


def is_number(kind: DataType) -> bool:
    """Whether the type is a number; booleans count as 0 and 1."""
    from pyspark.sql.types import BooleanType, NumericType

    return isinstance(kind, NumericType | BooleanType)


def is_number_array(kind: DataType) -> bool:
    """Whether the type is an array of numbers."""
    from pyspark.sql.types import ArrayType

    return isinstance(kind, ArrayType) and is_number(kind.elementType)


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
        raise SchemaError(
            f"{argument} {name!r} is not a column of the data.{hint} "
            f"Columns: {', '.join(frame.columns)}."
        )
    return frame.schema[name].dataType


def _holds_integers(kind: DataType) -> bool:
    from pyspark.sql.types import ArrayType, BooleanType, IntegralType

    element = kind.elementType if isinstance(kind, ArrayType) else kind
    return isinstance(element, IntegralType | BooleanType)


def _resolve_label(frame: DataFrame, name: str) -> Label:
    kind = _column_type(frame, name, "label_col")
    if is_number(kind):
        return Label(name, None, _holds_integers(kind))
    if is_number_array(kind) or is_vector(kind):
        return Label(name, _first_length(frame, name), integer=False)
    raise SchemaError(
        f"label_col {name!r} has a type that cannot be used. Received: {kind.simpleString()}. Use "
        "a number, or an array of numbers (one-hot, regression). Texts become integers with "
        "pyspark.ml.feature.StringIndexer."
    )


def _first_length(frame: DataFrame, name: str) -> int:
    row = frame.select(quoted(name)).first()
    if row is None or row[0] is None:
        raise SchemaError(
            f"Column {name!r} has no value in its first row, so its length is unknown. Drop such "
            f'rows: df.where("{name} is not null").'
        )
    return len(row[0])
