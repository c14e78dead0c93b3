"""What HDFS says when it refuses, and what that means: pure functions."""

from __future__ import annotations

from collections.abc import Collection
from urllib.parse import urlsplit

from distkeras_grid import file_systems
from distkeras_grid.errors import NoSpaceError, OutputExistsError, PathNotFoundError, StorageError
from distkeras_grid.file_systems import FULL, meaning

# A NameNode that is not the active one, is starting, or hands out a DataNode that has just died;
# and a DataNode that lost another one. The same question may be answered a moment later.
PASSING = frozenset({"RetriableException", "StandbyException", "IOException", "ConnectException"})

# Parts of what HDFS says, and what they mean to its client.
HINTS = {
    **file_systems.HINTS,
    "AccessControlException": "ask the owner for the permission, or set HADOOP_USER_NAME where the "
    "cluster believes it",
    "StandbyException": "this NameNode is not the active one; give the addresses of both, with ';' "
    "between them",
}
# What may be said for a file to come, or for one that is there.
MISSING = ("FileNotFoundException",)
EXISTS = ("FileAlreadyExistsException", "PathIsNotEmptyDirectoryException")


def refusal(action: str, path: str, exception: str | None, message: str) -> StorageError:
    """Return the error for what HDFS answered.

    Parameters
    ----------
    action : str
        What was tried, such as ``"write"``.
    path : str
    exception : str, optional
        Class name of Java's exception; None where the answer was not one of WebHDFS.
    message : str
        Its message.

    Examples
    --------
    >>> refusal("read", "/x", "FileNotFoundException", "File /x does not exist.")
    PathNotFoundError('cannot read /x on HDFS: it does not exist; check the path')
    """
    beginning = f"cannot {action} {path} on HDFS"
    if exception is None:
        return StorageError(
            f"{beginning}: what answers is not WebHDFS ({_first_line(message)}); check the URL, "
            "that of a NameNode's page, usually http://NAMENODE:9870"
        )
    told = f"{exception}: {_first_line(message)}"
    if full := meaning(FULL, told):
        return NoSpaceError(f"{beginning}: {told}; {full}")
    if exception in MISSING:
        return PathNotFoundError(f"{beginning}: it does not exist; check the path")
    if exception in EXISTS:
        return OutputExistsError(f"{beginning}: {told}; delete it or choose another name")
    hint = meaning(HINTS, told)
    return StorageError(f"{beginning}: {told}" + (f"; {hint}" if hint else ""))


def not_authenticated(action: str, path: str, *, kerberos: bool) -> StorageError:
    """Return the error for status 401."""
    advice = (
        "there is no valid Kerberos ticket; get one with kinit, look at it with klist"
        if kerberos
        else "it wants Kerberos; say --kerberos, or kerberos=True, after kinit"
    )
    return StorageError(
        f"cannot {action} {path} on HDFS: it does not know who asks (401): {advice}"
    )


def unreachable(
    action: str, path: str, url: str | None, namenodes: Collection[str], reason: str
) -> StorageError:
    """Return the error for a connection that is not made or breaks.

    Parameters
    ----------
    action, path : str
        What was tried, and on what.
    url : str, optional
        What was asked; None where it is not known.
    namenodes : collection of str
        URLs of the NameNodes.
    reason : str
        What the connection's library says, of any length.
    """
    host = urlsplit(url or next(iter(namenodes))).netloc
    is_namenode = host in {urlsplit(each).netloc for each in namenodes}
    who = f"the NameNode at {host}" if is_namenode else f"the DataNode at {host}"
    name = host.rpartition(":")[0] or host
    if "resolve" in reason or "Name or service not known" in reason:
        what = f"this machine knows no host {name!r}"
        advice = (
            "check the URL"
            if is_namenode
            else "the NameNode sends clients there; add the name to /etc/hosts or DNS"
        )
    elif "refused" in reason:
        what = f"{who} refuses connections"
        advice = (
            "check host and port, and that it runs"
            if is_namenode
            else "it has died, or its port cannot be reached from here"
        )
    elif "timed out" in reason or "Timeout" in reason:
        what = f"{who} does not answer"
        advice = "check that it can be reached from here: network, firewall, port"
    elif "SSL" in reason or "certificate" in reason.lower():
        what = f"{who} fails the TLS handshake ({_first_line(reason)})"
        advice = "name the file of its certificate authority in REQUESTS_CA_BUNDLE"
    else:
        what = f"the connection to {who.removeprefix('the ')} broke ({_first_line(reason)})"
        advice = "try again"
    return StorageError(f"cannot {action} {path} on HDFS: {what}; {advice}")


def _first_line(text: str, most: int = 300) -> str:
    return " ".join(text.split("\n", 1)[0].split())[:most].removesuffix(".")
