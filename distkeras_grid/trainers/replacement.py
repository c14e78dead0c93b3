"""Replaces a server that dies during a run, and takes the driver back to the same moment.

The new server goes on from the newest checkpoint, or from the beginning before the first one. The
history and the observer of epochs return to the same moment. Workers find the new server where the
old one was, and go on from the window that it names. They keep their rows and compiled functions.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from distkeras_grid.history import History

if TYPE_CHECKING:
    from distkeras_grid.errors import ServerUnreachableError
    from distkeras_grid.parameter_server.process import ServerProcess
    from distkeras_grid.spec import RunSpec
    from distkeras_grid.trainers.checkpointing import Checkpointer, SavedObserver

#: How often a server is replaced without a new checkpoint in between. After that, the next server
#: would probably die, too.
MOST_REPLACEMENTS = 3


class Replacement:
    """Replaces the server of one run whenever it has died.

    Parameters
    ----------
    server : ServerProcess
        The server, which must be replaceable.
    checkpointer : Checkpointer
        The run's checkpoints.
    spec : RunSpec
        The run.
    history : History
        The run's history.
    go_back : callable
        Takes the observer of epochs back, and returns the learning rate of the epoch that begins;
        see `EpochObserver.go_back`.
    note : callable
        Called with a line that says what happens.
    """

    def __init__(
        self,
        server: ServerProcess,
        checkpointer: Checkpointer,
        spec: RunSpec,
        history: History,
        go_back: Callable[[SavedObserver | None], float | None],
        note: Callable[[str], object],
    ) -> None:
        self._server, self._checkpointer, self._spec = server, checkpointer, spec
        self._history = history
        self._go_back, self._note = go_back, note
        # The checkpoint from which the last servers went on, and the number of these servers.
        self._number, self._count = 0, 0

    def replace(self, error: ServerUnreachableError) -> int:
        """Start another server; return the version of the center with which it begins.

        Parameters
        ----------
        error : ServerUnreachableError
            How the server's death was noticed. It is raised if servers die again and again.

        Raises
        ------
        GridError
            If no new server could be started.
        """
        resumed = self._checkpointer.go_back()
        number = 0 if resumed is None else resumed.manifest.number
        self._count = self._count + 1 if number == self._number else 1
        self._number = number
        if self._count > MOST_REPLACEMENTS:
            error.add_note(f"This happened {self._count} times without a checkpoint in between.")
            raise error
        before, earlier = self._history.samples, History()
        if resumed is not None:
            resumed.fill(earlier)
        self._history.go_back_to(earlier)
        repeated = before - earlier.samples
        self._note(
            f"The parameter server has died. Another one goes on from checkpoint {number}; "
            f"{repeated} samples are trained again."
            if number
            else f"The parameter server has died. Another one begins again, as there is no "
            f"checkpoint yet; {repeated} samples are trained again."
        )
        rate = self._go_back(None if resumed is None else resumed.driver.observer)
        self._server.replace(() if resumed is None else resumed.parts_for(self._spec))
        self._server.command(learning_rate=rate, epochs=len(earlier.epoch_records))
        self._checkpointer.went_back()
        version = 0 if resumed is None else resumed.manifest.version
        told: dict[str, float | str] = {"restarted": "server", "at": time.time()}
        told |= {"checkpoint": 0, "version": 0, "samples": 0} if resumed is None else resumed.told()
        self._history.params.setdefault("resumed", []).append({**told, "repeated": repeated})
        return version
