"""Decides where a run's rows are stored, if Spark may compute them in another order each time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from distkeras_grid.errors import GridError, StorageError
from distkeras_grid.spark.materialized_rows import (
    StoredRows,
    chosen_columns,
    is_repeatable,
    persisted_rows,
    read_rows,
    store_rows,
)
from distkeras_grid.spark.session import local_cores
from distkeras_grid.spark.storage import Storage
from distkeras_grid.spark.temporary_rows import ScratchRows, scratch_folder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from distkeras_grid.spark.checkpoints import CheckpointStore
    from distkeras_grid.spark.columns import Columns

ON_EXECUTORS = (
    "The rows may come in another order each time that Spark computes them, and are kept on the "
    "executors' disks. If an executor is lost, the run may end with an error. Give a "
    "checkpoint_dir on a path that all hosts share, or train on Parquet files."
)


@dataclass(frozen=True)
class RowMaterializer:
    """Where a run may store its rows."""

    checkpoints: CheckpointStore | None  # The run's checkpoints
    stored: str | None  # Folder in which an earlier execution of the run has stored its rows
    say: Callable[[str], object]  # Called with lines for the user

    @contextmanager
    def settled(
        self, frame: DataFrame, columns: Columns
    ) -> Iterator[tuple[DataFrame, StoredRows | None]]:
        """Yield rows that are the same in the same order each time, and how they were stored."""
        if self.stored is not None:
            rows = read_rows(frame, columns, self.stored)
            self.say(rows.sentence())
            yield rows.frame, rows
        elif is_repeatable(chosen_columns(frame, columns)):
            yield frame, None
        elif self.checkpoints is not None:
            with self._beside(self.checkpoints) as folder:
                rows = self._store(frame, columns, folder)
                yield rows.frame, rows
        elif (root := scratch_folder(frame.sparkSession)) is not None:
            with _in_the_home(Storage(frame.sparkSession), root, self.say) as folder:
                rows = self._store(frame, columns, folder)
                yield rows.frame, rows
        else:
            if local_cores(str(frame.sparkSession.sparkContext.master)) is None:
                self.say(ON_EXECUTORS)
            with persisted_rows(frame, columns) as stored:
                yield stored, None

    def _store(self, frame: DataFrame, columns: Columns, folder: str) -> StoredRows:
        rows = store_rows(frame, columns, folder)
        self.say(rows.sentence())
        return rows

    @contextmanager
    def _beside(self, checkpoints: CheckpointStore) -> Iterator[str]:
        """Yield a folder beside the checkpoints, which is deleted if none of these is written."""
        folder = checkpoints.new_rows()
        try:
            yield folder
        finally:
            # The result of the run is complete, or its error says more.
            try:
                checkpoints.drop_rows(folder)
            except GridError as error:
                self.say(f"The rows in {folder} may be left behind: {error}")


@contextmanager
def _in_the_home(storage: Storage, root: str, say: Callable[[str], object]) -> Iterator[str]:
    """Yield a folder in the user's home directory for the time of the run."""
    scratch, resources = ScratchRows(storage, root, say), ExitStack()
    try:
        # Others may not be allowed to read what the rows are computed of.
        storage.make_private_dirs(root)
        resources.enter_context(scratch)
    except StorageError as error:
        raise type(error)(
            f"{error} The rows may come in another order each time that Spark computes them, so "
            "they are stored there for the run. Give a checkpoint_dir, or train on Parquet files."
        ) from error
    try:
        yield scratch.folder
    finally:
        try:
            resources.close()
        except GridError as error:
            say(f"The rows in {scratch.folder} may be left until the next run: {error}")
