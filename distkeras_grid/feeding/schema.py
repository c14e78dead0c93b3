"""What the values of one column are, a feature or a label: shape, type, encoding, scaling, classes.

A binary column says nothing about its content. `Field` does. It is stored as JSON in the metadata
of the Spark column, and ``select``, ``filter`` and Parquet keep it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from distkeras_grid.errors import ConfigurationError, SchemaError
from distkeras_grid.feeding.encodings import ENCODED

METADATA_KEY = "distkeras_grid"
VERSION = 1
ENCODINGS = ("raw", *ENCODED)
DTYPES = (
    "uint8",
    "int8",
    "uint16",
    "int16",
    "uint32",
    "int32",
    "uint64",
    "int64",
    "float16",
    "float32",
    "float64",
)


@dataclass(frozen=True)
class Field:
    """The values of one feature or label column.

    Parameters
    ----------
    name : str
        Name of the column.
    shape : tuple of int
        Shape of one value; ``(height, width, channels)`` for an image, ``()`` for a number.
    dtype : str, default "uint8"
        NumPy name of the type in which a value is stored, little-endian.
    scale, offset : float, default 1.0 and 0.0
        The model sees ``value * scale + offset`` as float32.
    encoding : {"raw", "jpeg", "png", "difference", "tile"}, default "raw"
        ``raw`` is the array's bytes in C order; ``jpeg`` and ``png`` are the bytes of an image
        file; ``difference`` is the bytes of an array in which each row of the image is its
        difference from the row above (`distkeras_grid.feeding.delta_encoding`); ``tile`` says where
        a tile lies in an image, and it is cut when it is read (`data_prep.cut`).
    classes : tuple of str, default ()
        Name of class ``i`` at position ``i``, if the labels beside the column have names.
    recipe : str, default ""
        What a decoder must know in addition, as JSON text. For the encoding ``tile``, how images
        are read and rotated.

    Raises
    ------
    ConfigurationError
        If an argument is not valid.

    Examples
    --------
    >>> image = Field("image", (128, 128, 1), scale=1 / 255)
    >>> image.nbytes
    16384
    >>> Field.from_metadata("image", image.to_metadata()) == image
    True
    """

    name: str
    shape: tuple[int, ...]
    dtype: str = "uint8"
    scale: float = 1.0
    offset: float = 0.0
    encoding: str = "raw"
    classes: tuple[str, ...] = ()
    recipe: str = ""

    def __post_init__(self) -> None:
        # JSON and users give lists, but a frozen value needs tuples.
        object.__setattr__(self, "shape", _without_list(self.shape))
        object.__setattr__(self, "classes", _without_list(self.classes))
        self._check_name_and_shape()
        self._check_storage()
        self._check_meaning()

    @property
    def size(self) -> int:
        """How many numbers one value has."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of one decoded value."""
        return self.size * np.dtype(self.dtype).itemsize

    @property
    def is_file(self) -> bool:
        """Whether the bytes of a value are an image file, which other programs can open."""
        return self.encoding in ENCODED and ENCODED[self.encoding].is_file

    @property
    def scaling(self) -> tuple[float, float]:
        """``(scale, offset)``."""
        return self.scale, self.offset

    def to_metadata(self) -> dict[str, Any]:
        """Return the metadata of the Spark column.

        Returns
        -------
        dict
            ``{"distkeras_grid": {...}}``, only JSON types, without the column's name.
        """
        content: dict[str, Any] = {
            "version": VERSION,
            "shape": list(self.shape),
            "dtype": self.dtype,
            "encoding": self.encoding,
            "scale": float(self.scale),
            "offset": float(self.offset),
            "classes": list(self.classes),
        }
        if self.recipe:
            content["recipe"] = self.recipe
        return {METADATA_KEY: content}

    @classmethod
    def from_metadata(cls, name: str, metadata: Mapping[str, Any]) -> Self:
        """Read what `to_metadata` wrote.

        Parameters
        ----------
        name : str
            Name of the column.
        metadata : mapping
            Metadata of the Spark column. Keys of other tools are ignored.

        Raises
        ------
        SchemaError
            If the metadata have no field, one of another version, or one that is not valid.
        """
        content = metadata.get(METADATA_KEY)
        if not isinstance(content, Mapping):
            raise SchemaError(
                f"Column {name!r} has no {METADATA_KEY!r} metadata. Received: {dict(metadata)!r}. "
                f'Describe it with Field("{name}", shape=(height, width, channels), '
                'dtype="uint8").'
            )
        if content.get("version") != VERSION:
            raise SchemaError(
                f"The metadata of column {name!r} must be of version {VERSION}. Received: version "
                f"{content.get('version')!r}. Use the program that wrote it."
            )
        try:
            return cls(
                name,
                shape=tuple(content["shape"]),
                dtype=content["dtype"],
                scale=content["scale"],
                offset=content["offset"],
                encoding=content["encoding"],
                classes=tuple(content["classes"]),
                recipe=content.get("recipe", ""),
            )
        except (KeyError, TypeError, ConfigurationError) as error:
            raise SchemaError(
                f"Column {name!r} has damaged {METADATA_KEY!r} metadata ({error!r}). Received: "
                f"{dict(content)!r}. Write the column again, or describe it with Field(...)."
            ) from error

    def _check_name_and_shape(self) -> None:
        if not _is_name(self.name):
            raise ConfigurationError(
                f"A field needs the name of a column. Received: {self.name!r}."
            )
        if not _is_tuple_of(_is_count, self.shape):
            raise ConfigurationError(
                f"The shape of field {self.name!r} must be a tuple of positive integers such as "
                f"(28, 28, 1). Received: {self.shape!r}."
            )

    def _check_storage(self) -> None:
        if self.dtype not in DTYPES:
            raise ConfigurationError(
                f"The dtype of field {self.name!r} must be one of {', '.join(DTYPES)}. "
                f"Received: {self.dtype!r}."
            )
        if self.encoding not in ENCODINGS:
            raise ConfigurationError(
                f"The encoding of field {self.name!r} must be one of {', '.join(ENCODINGS)}. "
                f"Received: {self.encoding!r}."
            )
        if self.encoding not in ENCODED:
            return
        if len(self.shape) != 3 or self.shape[2] not in (1, 3):
            raise ConfigurationError(
                f"Field {self.name!r} is {self.encoding}, so its shape must be "
                f"(height, width, 1 or 3). Received: {self.shape}."
            )
        if self.dtype not in ENCODED[self.encoding].dtypes:
            raise ConfigurationError(
                f"Field {self.name!r} is {self.encoding}, which holds "
                f"{' or '.join(ENCODED[self.encoding].dtypes)}. Received: dtype {self.dtype!r}."
            )

    def _check_meaning(self) -> None:
        if not _is_finite(self.scale) or self.scale == 0 or not _is_finite(self.offset):
            raise ConfigurationError(
                f"Field {self.name!r} needs a finite scale other than 0 and a finite offset. "
                f"Received: scale={self.scale!r}, offset={self.offset!r}."
            )
        if not _is_tuple_of(_is_name, self.classes):
            raise ConfigurationError(
                f"The classes of field {self.name!r} must be a tuple of names. "
                f"Received: {self.classes!r}."
            )
        if not isinstance(self.recipe, str):
            raise ConfigurationError(
                f"The recipe of field {self.name!r} must be JSON text. Received: {self.recipe!r}."
            )
        if len(set(self.classes)) != len(self.classes):
            raise ConfigurationError(
                f"The classes of field {self.name!r} must differ. Received: {self.classes!r}."
            )


def _without_list(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


def _is_tuple_of(check: Callable[[object], bool], value: object) -> bool:
    return isinstance(value, tuple) and all(check(item) for item in value)


def _is_name(value: object) -> bool:
    return isinstance(value, str) and value != ""


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _is_finite(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
