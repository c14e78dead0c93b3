"""Decide whether and when a failed try is repeated, without a clock."""

from __future__ import annotations

from enum import Enum

from distkeras_grid.errors import StorageError
from distkeras_grid.file_systems import full

# Seconds between tries. A NameNode hands out a dead DataNode for ten minutes; the connection is
# refused at once, and the next one that it names may live. A standby takes over within the sum.
PAUSES = (0.05, 0.2, 0.5, 1.0, 2.0, 4.0, 8.0)
# Java's exceptions of a NameNode that is not the active one, is starting, or hands out a DataNode
# that has just died, and of a DataNode that lost another one. A later try may succeed.
PASSING = frozenset({"RetriableException", "StandbyException", "IOException", "ConnectException"})
# HTTP's statuses of a gateway whose server does not answer now.
BUSY = frozenset({502, 503, 504})
# Another NameNode of the same nameservice may be the active one.
NOT_ACTIVE = frozenset({"RetriableException", "StandbyException"})


class NetworkErrorKind(Enum):
    """Why there was no answer."""

    UNKNOWN_HOST = "unknown host"
    REFUSED = "refused"
    SILENT = "silent"
    TLS = "TLS"
    BROKEN = "broken"


class AttemptFailure(StorageError):
    """One try of an operation failed; `WebHdfsConnection` repeats it or says why it does not."""

    def __init__(self, url: str, message: str) -> None:
        super().__init__(message)
        self.url = url
        self.message = message


class HttpError(AttemptFailure):
    """A server answered that it will not.

    `exception`: class name of Java's exception; None where the answer was not one of WebHDFS.
    """

    def __init__(self, url: str, message: str, exception: str | None, status: int = 0) -> None:
        super().__init__(url, message)
        self.exception = exception
        self.status = status


class Unreachable(AttemptFailure):
    """A connection was not made, or broke before the whole answer had come."""

    def __init__(self, url: str, message: str, trouble: NetworkErrorKind) -> None:
        super().__init__(url, message)
        self.trouble = trouble


def next_pause(
    failure: AttemptFailure, *, tries: int, seconds: float, budget: float, patient: bool
) -> float | None:
    """Return how long to wait before the next try [s], None if there is none.

    `seconds`: since the first one began [s].
    `budget`: no try begins later than this after the first one [s].
    `patient`: whether any server has answered before. If none has, the address is probably wrong.

    Examples
    --------
    >>> failure = Unreachable("http://namenode:9870", "", NetworkErrorKind.REFUSED)
    >>> next_pause(failure, tries=1, seconds=0.0, budget=60.0, patient=True)
    0.05
    >>> next_pause(failure, tries=1, seconds=0.0, budget=60.0, patient=False)
    """
    if not patient or not is_transient(failure) or tries > len(PAUSES):
        return None
    pause = PAUSES[tries - 1]
    return pause if seconds + pause <= budget else None


def is_transient(failure: AttemptFailure) -> bool:
    """Tell whether the same question may be answered a moment later."""
    if isinstance(failure, HttpError):
        text = f"{failure.exception}: {failure.message}"
        passing = failure.exception in PASSING or failure.status in BUSY
        return passing and full(text) is None
    return True


def is_for_exclusion(failure: AttemptFailure) -> bool:
    """Tell whether HDFS says no more than that the DataNode that was left out is needed."""
    return isinstance(failure, HttpError) and "not excluded nodes contain" in failure.message


def try_other_namenode(failure: AttemptFailure) -> bool:
    """Tell whether another NameNode may answer what this one did not."""
    return isinstance(failure, Unreachable) or (
        isinstance(failure, HttpError) and failure.exception in NOT_ACTIVE
    )
