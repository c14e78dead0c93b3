"""Where tasks put the files that they write: a folder that all hosts see, or HDFS."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from data_prep.images.file_access import (
    SPARK,
    FileOpener,
    choose_opening,
    connection_to,
    local_path,
)
from distkeras_grid.errors import ConfigurationError, StorageError
from distkeras_grid.webhdfs.addresses import parse_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PIECE_BYTES = 1 << 20


@dataclass(frozen=True)
class OutputTarget:
    """A folder to which tasks write.

    A file appears whole under its name. A task that runs again writes the same bytes again.
    """

    folder: str  # The whole path
    opening: FileOpener  # How tasks access the folder

    def put(self, name: str, content: bytes) -> None:
        """Write a file."""
        if self.opening.address is not None:
            path = f"{parse_path(self.folder).path}/{name}"
            connection = connection_to(self.opening.address)
            connection.again("write", path, lambda: connection.write(path, _pieces(content)))
            return
        target = Path(local_path(self.folder), name)
        # Two attempts of a task may write it at the same time.
        begun = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            begun.write_bytes(content)
            os.replace(begun, target)
        except OSError as error:
            with suppress(OSError):
                begun.unlink()
            raise StorageError(f"{target} cannot be written: {error}") from error


def choose_place(spark: SparkSession, folder: str) -> OutputTarget:
    """Return how tasks write to a folder."""
    opening = choose_opening(spark, folder)
    if opening.kind == SPARK:
        raise ConfigurationError(
            f"Tasks write the files of an export themselves, to a folder that all hosts see or to "
            f"HDFS by WebHDFS. Received: {folder} ({opening.why}). Export elsewhere, and copy it, "
            "or take --format huggingface, which Spark writes."
        )
    return OutputTarget(folder, opening)


def _pieces(content: bytes) -> Iterator[bytes]:
    for start in range(0, len(content), PIECE_BYTES):
        yield content[start : start + PIECE_BYTES]
