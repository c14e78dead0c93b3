"""How long a worker may stay in each state, who sees that, and what is done then: one table.

`RunMonitor` uses this table. The table in `distkeras_grid/trainers/README.md` is the result of
`as_markdown`; a test compares them.

The table distinguishes two things. A worker *makes progress* if its state, its rows, its
batches or its commits change. It *lives* if its signs of life still arrive; a separate thread sends
them. A worker that lives may be in a long operation, so it has more time than a silent one.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from itertools import groupby
from typing import Literal, TypeAlias

#: What a worker reports that it does. The server sets ``waiting`` while a commit waits for
#: those of other workers, or its answer for the driver's callbacks.
Activity: TypeAlias = Literal["", "reading", "importing", "warming up", "training", "waiting"]
#: Seconds between two signs of life.
BEAT_SECONDS = 5.0
#: A worker with long windows counts as silent only after this many of them.
SILENT_WINDOWS = 20
#: Seconds for the tasks of a run whose workers have all finished.
FINISH_SECONDS = 10.0
#: Seconds in which the first connection must succeed. Spark makes four attempts, and a blocked port
#: must be reported after them, before the run's start_timeout ends.
CONNECT_SECONDS = 30.0
#: Seconds in which whoever connects must have proved that they have the key.
HANDSHAKE_SECONDS = 10.0
#: Total seconds that a worker's request may spend without a connection.
RECONNECT_SECONDS = 10.0
#: Seconds in which a message must be complete, in addition to its section's time on a slow line.
STALL_SECONDS = 60.0


class TimeoutKind(Enum):
    """How long a worker may stay in a state; the value says it in words."""

    START = "`start_timeout` without progress"
    MISSING = "`start_timeout`"
    WINDOW = (
        f"`round_timeout` without a sign of life; `round_timeout` or {SILENT_WINDOWS} windows, "
        "whichever is longer, without progress"
    )
    OTHERS = "that of the workers, or of the driver, that it waits for"
    CONNECT = f"{CONNECT_SECONDS:.0f} s, at most `start_timeout`"
    ANSWER = f"{STALL_SECONDS:.0f} s, and the time of the bytes on a slow line"
    FINISH = f"{FINISH_SECONDS:.0f} s"


class OnTimeout(Enum):
    """What is done when a state has lasted too long; the value says it in words."""

    GO_ON_WITHOUT = "the run goes on without it if it can, and takes it when it comes"
    RESTART = "its task is started again"
    WAIT = "nothing: these are restarted, or the run goes on without them"
    RECONNECT = (
        f"the worker connects again, for {RECONNECT_SECONDS:.0f} s in all, and repeats the "
        "request, which counts once; after that the attempt ends, and Spark starts another"
    )
    FAIL = "the attempt ends with an error, and Spark starts another"
    CANCEL = "the tasks are cancelled; the model is complete"


@dataclass(frozen=True, slots=True)
class WorkerPhase:
    """A state of a worker."""

    name: str  # Name of the state
    # Pairs of a seat's status on the server, and what its worker does, which are this state. The
    # driver watches it. If empty, another part of the run watches it.
    statuses: tuple[tuple[str, Activity], ...]
    limit: TimeoutKind  # How long it may last
    then: OnTimeout  # What is done when the limit is over


STATES = (
    WorkerPhase(
        "waiting for a slot", (("absent", ""),), TimeoutKind.MISSING, OnTimeout.GO_ON_WITHOUT
    ),
    WorkerPhase("connecting", (), TimeoutKind.CONNECT, OnTimeout.FAIL),
    WorkerPhase("connected", (("joined", ""),), TimeoutKind.START, OnTimeout.RESTART),
    WorkerPhase(
        "spooling its rows", (("joined", "reading"),), TimeoutKind.START, OnTimeout.RESTART
    ),
    WorkerPhase(
        "importing Keras", (("joined", "importing"),), TimeoutKind.START, OnTimeout.RESTART
    ),
    WorkerPhase("warm-up", (("joined", "warming up"),), TimeoutKind.START, OnTimeout.RESTART),
    WorkerPhase("at the gate", (("ready", ""),), TimeoutKind.OTHERS, OnTimeout.WAIT),
    WorkerPhase(
        "in a window",
        (("running", "training"), ("running", "")),
        TimeoutKind.WINDOW,
        OnTimeout.RESTART,
    ),
    WorkerPhase("between epochs", (("running", "reading"),), TimeoutKind.WINDOW, OnTimeout.RESTART),
    WorkerPhase("commit in flight, or reply lost", (), TimeoutKind.ANSWER, OnTimeout.RECONNECT),
    WorkerPhase(
        "in a round, or at an epoch's end",
        (("running", "waiting"),),
        TimeoutKind.OTHERS,
        OnTimeout.WAIT,
    ),
    WorkerPhase("lost", (("lost", ""),), TimeoutKind.MISSING, OnTimeout.GO_ON_WITHOUT),
    WorkerPhase("finishing", (), TimeoutKind.FINISH, OnTimeout.CANCEL),
)
_BY_PLACE = {place: state for state in STATES for place in state.statuses}
_BY_STATUS = {state.statuses[0][0]: state for state in reversed(STATES) if state.statuses}


def state_of(status: str, doing: Activity) -> WorkerPhase | None:
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
    return _BY_PLACE.get((status, doing)) or _BY_STATUS.get(status)


def as_markdown() -> str:
    """Return the table in Markdown, for the guide; neighbours with the same limit are one row."""
    rows = ["| a worker is | for at most | then |", "|---|---|---|"]
    for (limit, then), states in groupby(STATES, key=lambda state: (state.limit, state.then)):
        names = "; ".join(state.name for state in states)
        rows.append(f"| {names} | {limit.value} | {then.value} |")
    return "\n".join(rows)
