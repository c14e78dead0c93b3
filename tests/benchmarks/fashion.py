"""Fashion-MNIST: from the four IDX files to arrays and to Parquet."""

from __future__ import annotations

import gzip
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

VARIABLE = "FASHION_MNIST"
FILES = {
    "train": ("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"),
    "test": ("t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"),
}
# The last of the training rows, on which targets are chosen and times to them are measured.
VALIDATION_ROWS = 10_000
# Files of the Parquet data set, so that both tasks have something to read.
PARTS = 4


@dataclass(frozen=True)
class Rows:
    """Images ``(n, 28, 28, 1)``, uint8, and labels ``(n,)``, int64."""

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]

    def shaped(self, shape: tuple[int, ...]) -> NDArray[np.uint8]:
        """Return the images as a net wants them."""
        return self.images.reshape(len(self.images), *shape)

    def scaled(self, shape: tuple[int, ...]) -> NDArray[np.float32]:
        """Return the images as float32 from 0 to 1."""
        return self.shaped(shape).astype(np.float32) / np.float32(255)


def find_folder() -> tuple[Path | None, str]:
    """Return the folder that the environment names, or None and what to do."""
    named = os.environ.get(VARIABLE, "")
    files = [name for pair in FILES.values() for name in pair]
    if named and all((Path(named) / name).is_file() for name in files):
        return Path(named), ""
    return None, (
        f"set {VARIABLE} to the folder that holds {', '.join(files)} "
        f"(https://github.com/zalandoresearch/fashion-mnist); it is {named or 'not set'}"
    )


def read(folder: Path, split: str) -> Rows:
    """Read ``"train"``, of it ``"fitting"`` or ``"validation"``, or ``"test"``."""
    names = FILES["test" if split == "test" else "train"]
    images, labels = (_read_idx(folder / name) for name in names)
    part = {
        "fitting": slice(-VALIDATION_ROWS),
        "validation": slice(-VALIDATION_ROWS, None),
    }
    chosen = part.get(split, slice(None))
    return Rows(images[chosen, ..., np.newaxis], labels[chosen].astype(np.int64))


def _read_idx(path: Path) -> NDArray[np.uint8]:
    """Read an IDX file of bytes: the number of dimensions, their lengths, and the values."""
    content = gzip.decompress(path.read_bytes())
    lengths = np.frombuffer(content, ">u4", content[3], 4)
    return np.frombuffer(content, np.uint8, offset=4 + lengths.nbytes).reshape(lengths)


def write_parquet(rows: Rows, folder: Path) -> None:
    """Write the images as raw bytes, the labels as integers."""
    folder.mkdir(parents=True)
    for part in range(PARTS):
        images, labels = rows.images[part::PARTS], rows.labels[part::PARTS]
        contents = pa.array([image.tobytes() for image in images], pa.binary())
        table = pa.table({"image": contents, "label": pa.array(labels)})
        pq.write_table(table, folder / f"part-{part}.parquet")
