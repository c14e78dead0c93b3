"""Which run works on a data set, and what becomes of what dead runs left there."""

from __future__ import annotations

from collections.abc import Callable, Collection

from data_prep.publication import JOURNAL, owners, perform, recover, take_over
from distkeras_grid.spark.presence import Presence
from distkeras_grid.spark.storage import Storage


class Ownership(Presence):
    """The right to change a data set, for as long as the ``with`` block runs.

    What a dead run left is finished, undone and swept at the beginning; what this one leaves at the
    end.

    Parameters
    ----------
    storage : Storage
    root : str
        The data set; it need not exist.
    say : callable
        Receives lines for a person.

    Attributes
    ----------
    id : str
        Of this run.
    last_shard : int
        The highest number of a shard that any run has used.
    """

    def __init__(self, storage: Storage, root: str, say: Callable[[str], object]) -> None:
        super().__init__(storage, root, say)
        self.last_shard = -1

    def owners(self) -> set[str]:
        """Return the ids of all runs that have left something."""
        return owners(self._storage.list_names(self._root), self.text_of(JOURNAL))

    def take_over(self, dead: Collection[str]) -> None:
        """Finish, undo and sweep what dead runs left."""
        taken = perform(self._storage, self._root, take_over(dead))
        self.last_shard = taken.last
        if taken.outcome:
            self._say(f"{taken.outcome} the change that a run had begun which was killed")

    def sweep(self) -> None:
        """Undo what this run has not decided, and delete what it leaves."""
        perform(self._storage, self._root, recover({self.id}, finish=False))
