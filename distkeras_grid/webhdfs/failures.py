"""Failed tries: whether a later one may succeed, and what the last one means; pure functions."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any
from urllib.parse import urlsplit

from distkeras_grid import file_systems
from distkeras_grid.errors import (
    NoSpaceError,
    NotAuthenticatedError,
    OutputExistsError,
    PathNotFoundError,
    StorageError,
)
from distkeras_grid.file_systems import full, meaning
from distkeras_grid.tickets import Keytab, ticket_advice

# Seconds between tries. A NameNode hands out a dead DataNode for ten minutes; the connection is
# refused at once, and the next one that it names may live. A standby takes over within the sum.
PAUSES = (0.05, 0.2, 0.5, 1.0, 2.0, 4.0, 8.0)
# Java's exceptions of a NameNode that is not the active one, is starting, or hands out a DataNode
# that has just died, and of a DataNode that lost another one. A later try may succeed.
PASSING = frozenset({"RetriableException", "StandbyException", "IOException", "ConnectException"})
# HTTP's statuses of a gateway whose server does not answer now.
BUSY = frozenset({502, 503, 504})
# Parts of what HDFS says, and what they mean to its client.
HINTS = {
    **file_systems.HINTS,
    "AccessControlException": "Ask the owner for the permission, or set HADOOP_USER_NAME where the "
    "cluster believes it.",
    "StandbyException": "This NameNode is not the active one. Give the addresses of both, with ';' "
    "between them.",
}
# Why there was no answer, and what to do about it.
UNREACHABLE = {
    "unknown host": (
        "this machine knows no host {host!r}",
        "Check the URL; the name of a DataNode is as the NameNode knows it: add it to /etc/hosts "
        "or DNS.",
    ),
    "refused": (
        "{who} refuses connections",
        "Check host and port, that it runs, and that it can be reached from here.",
    ),
    "silent": (
        "{who} does not answer",
        "Check that it can be reached from here: network, firewall, port.",
    ),
    "TLS": (
        "{who} fails the TLS handshake ({reason})",
        "Name the file of its certificate authority in REQUESTS_CA_BUNDLE.",
    ),
    "broken": (
        "the connection to {who} broke ({reason})",
        "Try again; if a DataNode's breaks in every try, all copies of a block may be damaged.",
    ),
}


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
        self.text = f"{exception}: {first_line(message)}"


class Unreachable(AttemptFailure):
    """A connection was not made, or broke before the whole answer had come.

    `trouble`: a key of `UNREACHABLE`.
    """

    def __init__(self, url: str, message: str, trouble: str) -> None:
        super().__init__(url, message)
        self.trouble = trouble


def is_transient(failure: AttemptFailure) -> bool:
    """Tell whether the same question may be answered a moment later."""
    if isinstance(failure, HttpError):
        return failure.exception in PASSING and full(failure.text) is None
    return True


def is_for_exclusion(failure: AttemptFailure) -> bool:
    """Tell whether HDFS says no more than that the DataNode that was left out is needed."""
    return "not excluded nodes contain" in failure.message


def may_be_lost(failure: AttemptFailure) -> bool:
    """Tell whether a file could not be read because a block of it is damaged or gone.

    A DataNode that meets a damaged block in the middle of an answer only ends the connection.
    """
    if isinstance(failure, HttpError):
        return meaning(file_systems.NODES, failure.text) is not None
    return isinstance(failure, Unreachable) and failure.trouble == "broken"


def lost(beginning: str, blocks: Iterable[dict[str, Any]]) -> StorageError | None:
    """Return the error for a file with a block that nobody can read; None if it has none.

    `blocks`: as in WebHDFS' answer.
    """
    for block in blocks:
        where = f"{beginning}: of the block at byte {block['offset']:,}"
        if block.get("corrupt"):
            return StorageError(
                f"{where} all copies are damaged (on {', '.join(block['hosts']) or 'no host'}). "
                "Delete the file and write it again, from where it came."
            )
        if not block["hosts"]:
            return StorageError(
                f"{where} no DataNode with a copy is alive. Start the DataNodes that are missing "
                "on the NameNode's page (Datanodes), and try again."
            )
    return None


def explain(
    action: str,
    path: str,
    failure: AttemptFailure,
    *,
    namenodes: Collection[str] = (),
    kerberos: bool | Keytab = False,
) -> StorageError:
    """Return the error for the last try of an operation.

    Examples
    --------
    >>> missing = HttpError("http://nn:9870", "File /x does not exist.", "FileNotFoundException")
    >>> explain("read", "/x", missing)
    PathNotFoundError('Cannot read /x on HDFS: it does not exist. Check the path.')
    """
    beginning = f"Cannot {action} {path} on HDFS"
    reason = first_line(failure.message)
    host = urlsplit(failure.url).netloc
    if isinstance(failure, Unreachable):
        is_namenode = host in {urlsplit(each).netloc for each in namenodes}
        who = f"the {'NameNode' if is_namenode else 'DataNode'} at {host}"
        what, advised = UNREACHABLE[failure.trouble]
        what = what.format(who=who, host=host.rpartition(":")[0] or host, reason=reason)
        return StorageError(f"{beginning}: {what}. {advised}")
    if not isinstance(failure, HttpError):
        return failure
    if failure.status == 401:
        advised = (
            ticket_advice(kerberos if isinstance(kerberos, Keytab) else None)
            if kerberos
            else "It wants Kerberos: say --kerberos, or kerberos=True, after kinit; or --principal "
            "and --keytab."
        )
        return NotAuthenticatedError(f"{beginning}: the user is not known (401). {advised}")
    if failure.exception is None:
        return StorageError(
            f"{beginning}: the server is not WebHDFS. Received: {reason}. Check the URL: it is "
            "that of a NameNode's page, usually http://NAMENODE:9870."
        )
    if lacking := full(failure.text):
        return NoSpaceError(f"{beginning}: {failure.text}. {lacking}")
    if failure.exception == "FileNotFoundException":
        return PathNotFoundError(f"{beginning}: it does not exist. Check the path.")
    if failure.exception in ("FileAlreadyExistsException", "PathIsNotEmptyDirectoryException"):
        return OutputExistsError(f"{beginning}: {failure.text}. Delete it or choose another name.")
    hint = meaning(HINTS, failure.text)
    return StorageError(f"{beginning}: {failure.text}." + (f" {hint}" if hint else ""))


def first_line(text: str, most: int = 300) -> str:
    """Return the first line of what a server said."""
    return " ".join(text.split("\n", 1)[0].split())[:most].removesuffix(".")
