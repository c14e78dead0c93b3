"""How long each wait of a run lasts, and how long a worker may stay in each state: two tables.

The first are the constants: who waits for what, and why so long. The limits of a run that a user
sets, `start_timeout` and `round_timeout`, are in its specification (`distkeras_grid.spec`).

`RunMonitor` uses the second, `STATES`; `distkeras_grid/trainers/README.md` tells it to users.

It distinguishes two things. A worker *makes progress* if its state, its rows, its
batches or its commits change. It *lives* if its signs of life still arrive; a separate thread sends
them. A worker that lives may be in a long operation, so it has more time than a silent one.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Literal, TypeAlias

#: What a worker reports that it does. The server sets ``waiting`` while a commit waits for
#: those of other workers, or its answer for the driver's callbacks.
Activity: TypeAlias = Literal["", "reading", "importing", "warming up", "training", "waiting"]

# -- a worker and the server [s] ----------------------------------------------------------------

#: Until a worker's first connection succeeds. Spark makes four attempts, and a blocked port must be
#: reported after them, before the run's start_timeout ends.
CONNECT_SECONDS = 30.0
#: Until whoever connects has proved that they have the key.
HANDSHAKE_SECONDS = 10.0
#: What a request may spend without a connection, in all...
RECONNECT_SECONDS = 10.0
#: ...with pauses between its attempts: the first, and the longest. A random part is taken off.
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 1.0
#: Until a message is complete, in addition to its section's time on a slow line.
STALL_SECONDS = 60.0
#: Between two signs of life of a worker.
BEAT_SECONDS = 5.0
#: A worker with long windows counts as silent only after this many of them.
SILENT_WINDOWS = 20
#: Between two signs of life of the server, to a client whose answer waits for other workers...
KEEPALIVE_SECONDS = 5.0
#: ...and between two looks of the server whether that client is alive.
LOOK_SECONDS = 0.5
#: Until a client has read why the server closes the connection.
GOODBYE_SECONDS = 2.0
#: Until the server accepts clients again after it could not, such as without file descriptors.
PAUSE_SECONDS = 0.1

# -- the driver and the server [s] --------------------------------------------------------------

#: Until a server process listens, and until it has ended.
START_SECONDS, STOP_SECONDS = 60.0, 5.0
#: Until the server has answered the driver, with all reconnections. Usually it answers at once. A
#: busy or suspended host takes longer, and must not end a run.
ANSWER_SECONDS = 120.0
#: Between two polls. One costs the server well under a millisecond, and the last commit is noticed
#: within this time.
POLL_SECONDS = 0.1

# -- the end of a run, and its checkpoints [s] --------------------------------------------------

#: Until the tasks of a run have ended whose workers have all finished.
FINISH_SECONDS = 10.0
#: After an early stop, workers learn of it with their next reply. The run does not wait for those
#: in longer windows, because their results are not needed.
SHORT_WINDOW = 2.0
#: Until the workers have sent their states for the last checkpoint of a run that ends early.
LAST_SECONDS = 5.0
#: Until a checkpoint is written: enough for 60 GB at 100 MB/s. A file system that hangs would
#: otherwise keep a complete model from its user.
WRITE_SECONDS = 600.0
#: Until the reason of a worker's loss is known. YARN's comes with a heartbeat of the application's
#: master.
REASON_SECONDS = 15.0

# -- the states of a worker ---------------------------------------------------------------------


class TimeoutKind(Enum):
    """How long a worker may stay in a state; the guide to the trainers has the table."""

    START = "start_timeout without progress, then its task is started again"
    MISSING = "start_timeout, then the run goes on without it if it can"
    WINDOW = "round_timeout, or many windows, then its task is started again"
    OTHERS = "as long as the workers, or the driver, that it waits for"


@dataclass(frozen=True, slots=True)
class WorkerPhase:
    """A state of a worker."""

    name: str  # Name of the state
    # Pairs of a seat's status on the server, and what its worker does, which are this state
    statuses: tuple[tuple[str, Activity], ...]
    limit: TimeoutKind  # How long it may last


STATES = (
    WorkerPhase("waiting for a slot", (("absent", ""),), TimeoutKind.MISSING),
    WorkerPhase("connected", (("joined", ""),), TimeoutKind.START),
    WorkerPhase("spooling its rows", (("joined", "reading"),), TimeoutKind.START),
    WorkerPhase("importing Keras", (("joined", "importing"),), TimeoutKind.START),
    WorkerPhase("warm-up", (("joined", "warming up"),), TimeoutKind.START),
    WorkerPhase("at the gate", (("ready", ""),), TimeoutKind.OTHERS),
    WorkerPhase("in a window", (("running", "training"), ("running", "")), TimeoutKind.WINDOW),
    WorkerPhase("between epochs", (("running", "reading"),), TimeoutKind.WINDOW),
    WorkerPhase("in a round, or at an epoch's end", (("running", "waiting"),), TimeoutKind.OTHERS),
    WorkerPhase("lost", (("lost", ""),), TimeoutKind.MISSING),
)
_BY_PLACE = {place: state for state in STATES for place in state.statuses}
_BY_STATUS = {state.statuses[0][0]: state for state in reversed(STATES)}


def state_of(status: str, activity: Activity) -> WorkerPhase | None:
    """Return the state of a seat; None for a worker that has finished or given up.

    Examples
    --------
    >>> state_of("joined", "reading").name
    'spooling its rows'
    >>> state_of("lost", "training").name
    'lost'
    >>> state_of("finished", "") is None
    True
    """
    return _BY_PLACE.get((status, activity)) or _BY_STATUS.get(status)
