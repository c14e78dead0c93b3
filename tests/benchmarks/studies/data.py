"""The data of a comparison: the same rows for Spark's workers and for ``fit``."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from distkeras_grid.errors import ConfigurationError, EmptyDataError, SchemaError
from distkeras_grid.feeding.schema import Field
from distkeras_grid.feeding.source import ArraySource
from distkeras_grid.inference.evaluator import default_units
from distkeras_grid.spark.columns import Columns, resolve_columns
from distkeras_grid.spark.dataframes import SPLIT_COLUMN, read_parquet, read_tiles
from distkeras_grid.trainers.validation import collect

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

IMAGE, LABEL = "image", "label"
IMAGES_FILE, LABELS_FILE = "images.npy", "labels.npy"
TRAIN, VALIDATION, TEST = "train", "validation", "test"
# Of the training rows, where the data have no split to validate on.
HELD_OUT = 10


@dataclass(frozen=True)
class Data:
    """Rows to train with, to compare by, and to test with at the end."""

    train: DataFrame  # For the trainers
    folder: Path  # The same rows as ``.npy`` files, for ``fit``
    rows: int  # How many
    validation: ArraySource  # As stored
    test: ArraySource  # As stored
    field: Field  # The column of images
    classes: int
    fingerprint: str  # Text that identifies the training rows, whatever their order


def load_data(path: str, rows: int | None, scratch: Path) -> Data:
    """Read the splits of a data set of tiles or of images.

    Of images that have no split ``validation``, a tenth of ``train`` takes its place: always the
    same one, whatever `rows` is. `rows` takes no more of ``train``: always the same ones, from all
    of it. Training rows are also stored as arrays in `scratch`, a local folder.
    """
    from pyspark.sql import functions as F

    train, test = read_tiles(path, splits=(TRAIN, TEST))
    validation = read_parquet(train.sparkSession, path).where(F.col(SPLIT_COLUMN) == VALIDATION)
    if validation.isEmpty():
        train, validation = _divided(train, path)
    if rows is not None:
        # By a hash of the pixels: mixed, and no matter how files and tasks lie.
        train = train.orderBy(F.xxhash64(IMAGE), LABEL).limit(rows).persist()
    columns = resolve_columns(train, IMAGE, LABEL)
    (field,) = columns.features
    if len(field.shape) != 3:
        raise ConfigurationError(
            "The nets of a comparison take images of shape (height, width, channels). Received: "
            f"{field.shape} in {path}."
        )
    held = _rows(train, columns, path, TRAIN)
    (images,), (labels,) = held.features, held.labels
    np.save(scratch / IMAGES_FILE, images)
    np.save(scratch / LABELS_FILE, labels)
    validated = _rows(validation, columns, path, VALIDATION)
    tested = _rows(test, columns, path, TEST)
    classes = 1 + int(max(each.labels[0].max() for each in (held, validated, tested)))
    return Data(
        train,
        scratch,
        len(labels),
        validated,
        tested,
        field,
        max(classes, len(field.classes)),
        fingerprint(images, labels),
    )


def _rows(frame: DataFrame, columns: Columns, path: str, split: str) -> ArraySource:
    if frame.isEmpty():
        # A tenth of few images may be none of them.
        raise EmptyDataError(
            f"A comparison needs rows of each split. Received: {path} with none in {split}. Cut or "
            "ingest more images, or divide them anew."
        )
    return collect(frame, columns)


def _divided(train: DataFrame, path: str) -> tuple[DataFrame, DataFrame]:
    """Return rows to train with and rows to validate on; equal pictures are on one side."""
    from pyspark.sql import functions as F

    if default_units(train.columns):
        raise SchemaError(
            f"A comparison validates on a split of its own. Received: {path} without a split "
            f"{VALIDATION!r}; tiles of one image, and images of one group, cannot be divided. "
            "Divide the images anew (distkeras-grid revise --split 0.8:0.1:0.1, or ingest)."
        )
    held_out = F.pmod(F.xxhash64(F.lit(VALIDATION), IMAGE), F.lit(HELD_OUT)) == 0
    return train.where(~held_out), train.where(held_out)


def in_shape(rows: ArraySource, field: Field) -> ArraySource:
    """Return rows in the shape of a net's own field."""
    (features,) = rows.features
    return ArraySource([features.reshape(-1, *field.shape)], rows.labels, fields=[field])


def fingerprint(images: NDArray[Any], labels: NDArray[Any]) -> str:
    """Return a short fingerprint of the rows, which does not depend on their order.

    Examples
    --------
    >>> images, labels = np.arange(6).reshape(3, 2), np.array([0, 1, 1])
    >>> fingerprint(images, labels) == fingerprint(images[::-1], labels[::-1])
    True
    """
    rows = zip(images, labels, strict=True)
    total = sum(zlib.crc32(image.tobytes(), int(label)) for image, label in rows)
    return f"{total & 0xFFFFFFFF:08x}"


def scaled_arrays(folder: Path, field: Field) -> tuple[NDArray[np.float32], NDArray[Any]]:
    """Return what `load_data` saved as ``fit`` takes it: float32 as the model sees it, labels."""
    stored = np.load(folder / IMAGES_FILE, mmap_mode="r").reshape(-1, *field.shape)
    images = np.multiply(stored, np.float32(field.scale), dtype=np.float32)
    if field.offset:
        images += np.float32(field.offset)
    return images, np.load(folder / LABELS_FILE)
