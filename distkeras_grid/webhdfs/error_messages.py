"""Translate failures of HDFS into errors for the user, by pure functions."""

from __future__ import annotations

from collections.abc import Collection, Iterable
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
from distkeras_grid.webhdfs.responses import FileBlock
from distkeras_grid.webhdfs.retry_policy import (
    BUSY,
    AttemptFailure,
    HttpError,
    NetworkErrorKind,
    Unreachable,
)

# Parts of what HDFS says, and what they mean to its client.
HINTS = {
    **file_systems.HINTS,
    "AccessControlException": "Ask the owner for the permission, or set HADOOP_USER_NAME where the "
    "cluster believes it.",
    "StandbyException": "This NameNode is not the active one. Give the addresses of both, with ';' "
    "between them.",
}
# May be said for a file to be written, or for one that exists.
MISSING = ("FileNotFoundException",)
EXISTS = ("FileAlreadyExistsException", "PathIsNotEmptyDirectoryException")


def explain(
    action: str,
    path: str,
    failure: AttemptFailure,
    *,
    namenodes: Collection[str],
    kerberos: bool | Keytab,
    proxy: str | None = None,
) -> StorageError:
    """Return the error for the last try of an operation."""
    if isinstance(failure, HttpError) and failure.status == 401:
        return not_authenticated(action, path, kerberos=kerberos)
    if proxy and not (isinstance(failure, HttpError) and failure.exception):
        host = urlsplit(failure.url)
        return StorageError(
            f"Cannot {action} {path} on HDFS: {host.netloc} is not reached by way of the proxy at "
            f"{proxy}, which this environment names ({_first_line(failure.message)}). If the host "
            f"is in your own network, add it to NO_PROXY: {host.hostname}."
        )
    if isinstance(failure, HttpError) and failure.exception is None and failure.status in BUSY:
        return StorageError(
            f"Cannot {action} {path} on HDFS: {urlsplit(failure.url).netloc} answers with status "
            f"{failure.status} ({_first_line(failure.message)}). Try again later."
        )
    if isinstance(failure, HttpError):
        return refusal(action, path, failure.exception, failure.message)
    if isinstance(failure, Unreachable):
        return unreachable(action, path, failure, namenodes)
    return failure


def may_be_lost(failure: AttemptFailure) -> bool:
    """Tell whether a file could not be read because a block of it is damaged or gone.

    A DataNode that meets a damaged block in the middle of an answer only ends the connection.
    """
    if isinstance(failure, HttpError):
        return meaning(file_systems.NODES, f"{failure.exception}: {failure.message}") is not None
    return isinstance(failure, Unreachable) and failure.trouble is NetworkErrorKind.BROKEN


def lost(action: str, path: str, blocks: Iterable[FileBlock]) -> StorageError | None:
    """Return the error for a file with a block that nobody can read; None if it has none.

    Examples
    --------
    >>> blocks = [FileBlock(0, ("node-1",), is_corrupt=False), FileBlock(128, (), is_corrupt=False)]
    >>> str(lost("read", "/x", blocks)).partition(". ")[0]
    'Cannot read /x on HDFS: of the block at byte 128 no DataNode with a copy is alive'
    """
    for block in blocks:
        where = f"Cannot {action} {path} on HDFS: of the block at byte {block.offset:,}"
        if block.is_corrupt:
            return StorageError(
                f"{where} all copies are damaged (on {', '.join(block.hosts) or 'no host'}). "
                "Delete the file and write it again, from where it came."
            )
        if not block.hosts:
            return StorageError(
                f"{where} no DataNode with a copy is alive. Start the DataNodes that are missing "
                "on the NameNode's page (Datanodes), and try again."
            )
    return None


def refusal(action: str, path: str, exception: str | None, message: str) -> StorageError:
    """Return the error for an answer of HDFS.

    `exception`: class name of Java's exception; None where the answer was not one of WebHDFS.

    Examples
    --------
    >>> refusal("read", "/x", "FileNotFoundException", "File /x does not exist.")
    PathNotFoundError('Cannot read /x on HDFS: it does not exist. Check the path.')
    """
    beginning = f"Cannot {action} {path} on HDFS"
    if exception is None:
        return StorageError(
            f"{beginning}: the server is not WebHDFS. Received: {_first_line(message)}. Check the "
            "URL: it is that of a NameNode's page, usually http://NAMENODE:9870."
        )
    text = f"{exception}: {_first_line(message)}"
    if advice := full(text):
        return NoSpaceError(f"{beginning}: {text}. {advice}")
    if exception in MISSING:
        return PathNotFoundError(f"{beginning}: it does not exist. Check the path.")
    if exception in EXISTS:
        return OutputExistsError(f"{beginning}: {text}. Delete it or choose another name.")
    hint = meaning(HINTS, text)
    return StorageError(f"{beginning}: {text}." + (f" {hint}" if hint else ""))


def not_authenticated(action: str, path: str, *, kerberos: bool | Keytab) -> NotAuthenticatedError:
    """Return the error for status 401."""
    if kerberos:
        advice = ticket_advice(kerberos if isinstance(kerberos, Keytab) else None)
    else:
        advice = (
            "It wants Kerberos: say --kerberos, or kerberos=True, after kinit; or --principal and "
            "--keytab. A gateway may want its NAME:PASSWORD@ before the host of the URL."
        )
    return NotAuthenticatedError(
        f"Cannot {action} {path} on HDFS: the user is not known (401). {advice}"
    )


def unreachable(
    action: str, path: str, failure: Unreachable, namenodes: Collection[str]
) -> StorageError:
    """Return the error for a connection that is not made or breaks."""
    host = urlsplit(failure.url).netloc
    is_namenode = host in {urlsplit(each).netloc for each in namenodes}
    who = f"the {'NameNode' if is_namenode else 'DataNode'} at {host}"
    reason = _first_line(failure.message)
    what, advice = {
        NetworkErrorKind.UNKNOWN_HOST: (
            f"this machine knows no host {host.rpartition(':')[0] or host!r}",
            "Check the URL."
            if is_namenode
            else "The NameNode sends clients there: add the name to /etc/hosts or DNS.",
        ),
        NetworkErrorKind.REFUSED: (
            f"{who} refuses connections",
            "Check host and port, and that it runs."
            if is_namenode
            else "It has died, or its port cannot be reached from here.",
        ),
        NetworkErrorKind.SILENT: (
            f"{who} does not answer",
            "Check that it can be reached from here: network, firewall, port.",
        ),
        NetworkErrorKind.TLS: (
            f"{who} fails the TLS handshake ({reason})",
            "Name the file of its certificate authority in REQUESTS_CA_BUNDLE.",
        ),
        NetworkErrorKind.BROKEN: (
            f"the connection to {who} broke ({reason})",
            "Try again."
            if is_namenode
            else "Try again; if it breaks in every try, all copies of a block may be damaged. "
            "Compare with the file's origin, or read it with: hdfs dfs -get.",
        ),
    }[failure.trouble]
    return StorageError(f"Cannot {action} {path} on HDFS: {what}. {advice}")


def _first_line(text: str, most: int = 300) -> str:
    return " ".join(text.split("\n", 1)[0].split())[:most].removesuffix(".")
