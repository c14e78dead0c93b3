"""Rows of a data set as samples: the file of an image, its class, and all other columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from data_prep.dataset.schema import as_png
from distkeras_grid.errors import SchemaError
from distkeras_grid.feeding.arrays import features_from_arrow
from distkeras_grid.feeding.schema import Field

if TYPE_CHECKING:
    import pyarrow as pa

KEY, LABEL, LABEL_NAME = "tile_id", "label", "label_name"
ENCODING = "encoding"


@dataclass(frozen=True, slots=True)
class Sample:
    """One row."""

    key: str  # Unique name of the sample; letters and digits
    image: bytes  # The image as a file
    extension: str
    columns: dict[str, Any]  # All columns but the image

    @property
    def label_name(self) -> str:
        """Name of the class, or its number where it has none."""
        name = self.columns.get(LABEL_NAME)
        return str(int(self.columns[LABEL])) if name is None else str(name)


def folder_name(label: str) -> str:
    """Return the name of a class as the name of a folder.

    Examples
    --------
    >>> folder_name("dark field"), folder_name("a/b"), folder_name("_x"), folder_name("ö")
    ('dark field', 'a%2Fb', '%5Fx', 'ö')
    """
    # Spark and Hadoop skip names that begin with a dot or an underscore.
    first = label[:1].replace(".", "%2E").replace("_", "%5F")
    rest = "".join(quote(each, safe="") if each in "/\\%\0" else each for each in label[1:])
    return (quote(first, safe="") if first in "/\\%\0" and first else first) + rest


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


def samples_of(batch: pa.RecordBatch, field: Field, numbers: Iterator[str]) -> Iterator[Sample]:
    """Yield the rows of a batch."""
    images = files_of(batch.column(batch.schema.get_field_index(field.name)), field)
    names = [name for name in batch.schema.names if name != field.name]
    rows = zip(*(batch.column(name).to_pylist() for name in names), strict=True)
    for image, values in zip(images, rows, strict=True):
        columns = dict(zip(names, values, strict=True))
        key = str(columns.get(KEY) or next(numbers))
        yield Sample(key, image, extension_of(field), columns)


def extension_of(field: Field) -> str:
    """Return the file name extension of a column's images."""
    return field.encoding if field.is_file else "png"


def files_of(column: pa.Array, field: Field) -> Sequence[bytes]:
    """Return the images of a column as PNG files, or as the files that they are."""
    import pyarrow as pa

    if pa.types.is_struct(column.type):
        column = column.flatten()[column.type.get_field_index("bytes")]
    if field.is_file:
        files: list[bytes] = column.to_pylist()
        return files
    return [as_png(pixels) for pixels in features_from_arrow(column, field)]
