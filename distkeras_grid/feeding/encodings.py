"""How the encoded values of a feature column become arrays."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from numpy.typing import NDArray

from distkeras_grid.errors import EnvironmentMismatchError

if TYPE_CHECKING:
    from distkeras_grid.feeding.schema import Field

#: Returns the values of a column, shape ``(len(contents), *field.shape)``, from their bytes.
Decode: TypeAlias = Callable[[Sequence[memoryview], "Field"], NDArray[Any]]


@dataclass(frozen=True)
class Encoding:
    """One way to hold a value in bytes; nothing that it needs is imported before it is used."""

    dtypes: tuple[str, ...]  # Types that it can hold
    decode: str  # ``module:function``, a `Decode`
    # Whether values whose bytes begin alike are decoded faster one after the other
    grouped: bool = False
    # Whether encoded values have as many bytes as decoded ones, so that keeping them encoded saves
    # nothing
    same_size: bool = False
    is_file: bool = False  # Whether the bytes are an image file, which other programs can open


#: By the names that `Field.encoding` has; beside them there is ``raw``, which needs no decoding.
ENCODED: Mapping[str, Encoding] = {
    "jpeg": Encoding(("uint8",), "distkeras_grid.feeding.arrays:decode_images", is_file=True),
    "png": Encoding(
        ("uint8", "uint16"), "distkeras_grid.feeding.arrays:decode_images", is_file=True
    ),
    # Each row of an image as its difference from the row above, which zstd stores in fewer bytes.
    "difference": Encoding(
        ("uint8", "uint16"),
        "distkeras_grid.feeding.delta_encoding:from_differences",
        same_size=True,
    ),
    # A tile that is not cut yet: the bytes say where it lies in which image.
    "tile": Encoding(("uint8", "uint16"), "data_prep.on_the_fly.column:cut_tiles_of", grouped=True),
}


def decode(contents: Sequence[memoryview], field: Field) -> NDArray[Any]:
    """Return the values of an encoded column.

    `contents`: the bytes of each value.
    `field`: shape and type that all must have.
    """
    module, _, name = ENCODED[field.encoding].decode.partition(":")
    try:
        function: Decode = getattr(importlib.import_module(module), name)
    except ImportError as error:
        raise EnvironmentMismatchError(
            f"Column {field.name!r} is encoded as {field.encoding!r}, and {module} cannot be "
            f"imported on this host ({error}). Install the packages of the driver on all hosts."
        ) from error
    return function(contents, field)
