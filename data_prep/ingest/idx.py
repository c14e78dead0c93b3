"""IDX files, the format of MNIST and of data sets modelled on it, such as Fashion-MNIST.

Two zero bytes, the type (8: uint8), the number of dimensions, their lengths as big-endian numbers
of four bytes, and the values. The published files are compressed by gzip; both forms are read.
"""

from __future__ import annotations

import gzip
import math
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from io import SEEK_CUR, BufferedIOBase, BytesIO

import numpy as np
from numpy.typing import NDArray

from distkeras_grid.errors import DataError

GZIP = b"\x1f\x8b"
UINT8 = b"\0\0\x08"
# No image file has more dimensions; a header that says so is damaged.
MAX_DIMENSIONS = 4


def idx_shape(content: bytes, name: str) -> tuple[int, ...]:
    r"""Return the lengths of all dimensions; only the header is unpacked.

    `content`: bytes of the file, compressed or not.

    Examples
    --------
    >>> idx_shape(b"\0\0\x08\x01" + b"\0\0\0\x02" + b"ab", "labels")
    (2,)
    """
    with _opened(content, name) as stream:
        return _read_header(stream, name)


def iter_idx(
    content: bytes, name: str, start: int, stop: int, step: int
) -> Iterator[NDArray[np.uint8]]:
    r"""Yield the items from `start` to `stop`, `step` at a time.

    The file is unpacked as a stream: memory holds the compressed file and one piece.

    `content`: bytes of the file, compressed or not.
    Shape of the result: (items, ...).

    Examples
    --------
    >>> file = b"\0\0\x08\x01" + b"\0\0\0\x03" + b"abc"
    >>> [piece.tolist() for piece in iter_idx(file, "labels", 0, 3, 2)]
    [[97, 98], [99]]
    """
    with _opened(content, name) as stream:
        count, *item = _read_header(stream, name)
        size = math.prod(item)
        stream.seek(start * size, SEEK_CUR)
        for first in range(start, stop, step):
            items = min(step, stop - first)
            values = stream.read(items * size)
            if len(values) != items * size:
                raise DataError(
                    f"{name} is cut short: its header says {count:,} items of {size} bytes, and "
                    f"the values end before item {first + items:,}. Get the file again."
                )
            yield np.frombuffer(values, np.uint8).reshape(items, *item)
        # Reading on to the end also lets gzip compare its checksum.
        if stop == count and stream.read(1):
            raise DataError(
                f"{name} is longer than the {count:,} items of {size} bytes that its header says. "
                "Get the file again."
            )


def read_idx(content: bytes, name: str) -> NDArray[np.uint8]:
    """Return the whole file as an array; see `iter_idx`."""
    shape = idx_shape(content, name)
    pieces = list(iter_idx(content, name, 0, shape[0], max(1, shape[0])))
    return pieces[0] if pieces else np.zeros(shape, np.uint8)


@contextmanager
def _opened(content: bytes, name: str) -> Iterator[BufferedIOBase]:
    packed = content[:2] == GZIP
    try:
        with BytesIO(content) as plain:
            if not packed:
                yield plain
                return
            with gzip.GzipFile(fileobj=plain) as unpacked:
                yield unpacked
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"{name} is damaged ({error}). Get the file again.") from error


def _read_header(stream: BufferedIOBase, name: str) -> tuple[int, ...]:
    head = stream.read(4)
    dimensions = head[3] if len(head) == 4 else 0
    lengths = stream.read(4 * dimensions) if dimensions <= MAX_DIMENSIONS else b""
    if head[:3] != UINT8 or not dimensions or len(lengths) != 4 * dimensions:
        raise DataError(
            f"{name} is not an IDX file of uint8: it begins with {(head + lengths)[:8]!r}. Get the "
            "file again, or name the right folder."
        )
    return tuple(int(length) for length in np.frombuffer(lengths, ">u4"))
