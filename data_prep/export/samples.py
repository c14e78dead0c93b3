"""Rows of a data set as files: the image, its name, and the folder of its class."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from data_prep.dataset.schema import as_png
from distkeras_grid.errors import SchemaError
from distkeras_grid.feeding.arrays import features_from_arrow
from distkeras_grid.feeding.schema import Field

if TYPE_CHECKING:
    import pyarrow as pa

KEY, LABEL, LABEL_NAME = "tile_id", "label", "label_name"
ENCODING = "encoding"


def folder_name(label: str) -> str:
    """Return the name of a class as the name of a folder.

    Examples
    --------
    >>> folder_name("dark field"), folder_name("a/b"), folder_name("_x"), folder_name("ö")
    ('dark field', 'a%2Fb', '%5Fx', 'ö')
    """
    return "".join(
        # Spark and Hadoop skip names that begin with a dot or an underscore.
        f"%{ord(letter):02X}" if letter in "/\\%\0" or (not at and letter in "._") else letter
        for at, letter in enumerate(label)
    )


def check_exportable(field: Field) -> None:
    """Refuse images that no PNG can hold."""
    if field.is_file:
        return
    images = len(field.shape) == 3 and field.shape[2] in (1, 3)
    if not images or field.dtype not in ("uint8", "uint16"):
        raise SchemaError(
            f"Images of uint8 or uint16 with 1 or 3 channels are exported. Received: column "
            f"{field.name!r} with {field.dtype} of shape {field.shape}. Read it with pandas or "
            "pyarrow."
        )


def names_of(batch: pa.RecordBatch, field: Field, numbers: Iterator[str]) -> list[str]:
    """Return a file name for each row; a row without an id gets the next number."""
    ids = batch.column(KEY).to_pylist() if KEY in batch.schema.names else [None] * batch.num_rows
    return [f"{key or next(numbers)}.{extension_of(field)}" for key in ids]


def folders_of(batch: pa.RecordBatch) -> list[str]:
    """Return the folder of each row: its class, or the number of its class where it has no name."""
    labels = [str(int(label)) for label in batch.column(LABEL).to_pylist()]
    if LABEL_NAME not in batch.schema.names:
        return labels
    names = batch.column(LABEL_NAME).to_pylist()
    return [
        folder_name(label if name is None else name)
        for name, label in zip(names, labels, strict=True)
    ]


def extension_of(field: Field) -> str:
    """Return the file name extension of a column's images."""
    return field.encoding if field.is_file else "png"


def files_of(batch: pa.RecordBatch, field: Field) -> list[bytes]:
    """Return the images of a batch as PNG files, or as the files that they are."""
    import pyarrow as pa

    column = batch.column(batch.schema.get_field_index(field.name))
    if pa.types.is_struct(column.type):
        column = column.flatten()[column.type.get_field_index("bytes")]
    if field.is_file:
        files: list[bytes] = column.to_pylist()
        return files
    return [as_png(pixels) for pixels in features_from_arrow(column, field)]
