"""Rows in the user's home directory, for runs without a directory of checkpoints.

A run deletes its rows when it ends. One that was killed leaves them, and they are large. So all
runs of a user store them in one folder, each with a sign of life
(`distkeras_grid.spark.folder_lease`), and delete the rows of runs that are dead.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

from distkeras_grid.spark.folder_lease import BEAT_SECONDS, LOOK_SECONDS, LOOKS, FolderLease
from distkeras_grid.spark.session import local_cores
from distkeras_grid.spark.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FOLDER = ".distkeras_grid/rows"
# After so many signs of its own, a run has looked at the others for as long as is needed.
_LOOKED = LOOKS * LOOK_SECONDS / BEAT_SECONDS


def scratch_folder(spark: SparkSession) -> str | None:
    """Return where the user's runs store their rows; None without a file system of the cluster.

    A path of the local file system would be another folder on each host.
    """
    context: Any = spark.sparkContext
    if local_cores(str(context.master)) is not None:
        return None
    configuration = context._jsc.hadoopConfiguration()
    file_system = context._jvm.org.apache.hadoop.fs.FileSystem.get(configuration)
    if str(file_system.getScheme()) == "file":
        return None
    return f"{file_system.getHomeDirectory().toString()}/{FOLDER}"


class ScratchRows(FolderLease):
    """The right to store rows in the user's folder, for as long as the ``with`` block runs."""

    def __init__(self, storage: Storage, root: str, say: Callable[[str], object]) -> None:
        super().__init__(storage, root, say)
        # Runs that were perhaps dead when this one began, by their signs of life.
        self._unsure: dict[str, str | None] = {}

    @property
    def folder(self) -> str:
        """Where this run stores its rows."""
        return self._rows_of(self.id)

    def find_dead(self) -> set[str]:
        """Return the ids of the runs that are dead for certain; nobody has to wait for others."""
        others = {other: self.sign_of(other) for other in self.owners() - {self.id}}
        dead = {other for other, text in others.items() if self.is_process_gone(other, text)}
        self._unsure = {other: text for other, text in others.items() if other not in dead}
        return dead

    def recover(self, dead: Collection[str]) -> None:
        """Delete the rows of dead runs."""
        for owner in dead:
            self._storage.delete(self._rows_of(owner))
        super().recover(dead)

    def cleanup(self) -> None:
        """Delete the rows of this run, and those of runs that were silent all the time."""
        self._storage.delete(self.folder)
        if self.heartbeat_count >= _LOOKED:
            self.recover(
                [other for other, text in self._unsure.items() if self.sign_of(other) == text]
            )
        super().cleanup()

    def _rows_of(self, owner: str) -> str:
        return f"{self._root}/rows-{owner}"
