"""The exclusive right to change a data set, and cleaning up after dead runs."""

from __future__ import annotations

from collections.abc import Callable, Collection

from data_prep.dataset.commit import execute, owners, recover, recover_commit
from distkeras_grid.spark.dataframes import JOURNAL
from distkeras_grid.spark.folder_lease import FolderLease
from distkeras_grid.spark.storage import Storage


class DatasetLock(FolderLease):
    """The right to change a data set, held while the ``with`` block runs.

    On entry, changes of dead runs are finished or undone, and their files are deleted. On exit,
    the files that this run leaves are deleted.
    """

    def __init__(self, storage: Storage, root: str, say: Callable[[str], object]) -> None:
        super().__init__(storage, root, say)
        self.last_shard = -1

    def owners(self) -> set[str]:
        """Return the ids of all runs that have left files."""
        return owners(self._storage.list_names(self._root), self.text_of(JOURNAL))

    def recover(self, dead: Collection[str]) -> None:
        """Finish or undo what dead runs began, and delete their files."""
        taken = execute(self._storage, self._root, recover_commit(dead))
        self.last_shard = taken.last
        if taken.outcome:
            self._say(f"{taken.outcome} the change that a run had begun which was killed")

    def cleanup(self) -> None:
        """Undo what this run has not decided, and delete its files."""
        execute(self._storage, self._root, recover({self.id}, finish=False))
