"""What the exceptions of the driver's JVM mean: errors of the project with the path in them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from distkeras_grid import file_systems
from distkeras_grid.errors import (
    NoSpaceError,
    NotAuthenticatedError,
    OutputExistsError,
    PathNotFoundError,
    StorageError,
)
from distkeras_grid.file_systems import STRANGER, full, meaning
from distkeras_grid.signals import interrupts_first

# Parts of file systems' messages, and what to do about them in a Spark session.
HINTS = {
    **file_systems.HINTS,
    "UnknownHostException": "Check the host name in the path.",
    "ConnectException": "Check host and port in the path, and that the NameNode runs.",
    **file_systems.FORBIDDEN,
    "UnsupportedFileSystemException": "Spark has no driver for this kind of path.",
    "EOFException": "The NameNode closed the connection, as it does when it restarts: run it "
    "again.",
}


@contextmanager
def translated(action: str, uri: str) -> Iterator[None]:
    """Turn an exception of the JVM into a `StorageError` with the path in its message."""
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    try:
        with interrupts_first():
            yield
    except Py4JJavaError as error:
        raise storage_error(action, uri, causes_of(error.java_exception)) from error
    except PySparkException as error:  # Spark turns some exceptions of the JVM into its own
        raise storage_error(
            action, uri, [(type(error).__name__, _first_line(str(error)))]
        ) from error


@contextmanager
def disk_errors(action: str, uri: str) -> Iterator[None]:
    """Turn an error of the local disk at `uri` into a `StorageError` with the path in it."""
    try:
        yield
    except ConnectionError:  # To the JVM
        raise
    except OSError as error:
        reason = error.strerror or str(error)
        raise storage_error(action, uri, [(type(error).__name__, reason)]) from error


def causes_of(exception: Any) -> list[tuple[str, str]]:
    """Return class name and message of a Java exception and of what caused it."""
    causes = []
    while exception is not None:
        name = str(exception.getClass().getSimpleName())
        causes.append((name, _first_line(str(exception.getMessage()))))
        exception = exception.getCause()
    return causes


def storage_error(action: str, uri: str, causes: list[tuple[str, str]]) -> StorageError:
    """Return the error for Java's exceptions, given by their class names and messages."""
    name, message = causes[0]
    text = f"Cannot {action} {uri}: {name}: {message.removesuffix('.')}."
    lines = [f"{name}: {message}" for name, message in causes]
    if advice := next((reason for line in lines if (reason := full(line))), None):
        return NoSpaceError(f"{text} {advice}")
    if advice := _meaning(STRANGER, causes):
        return NotAuthenticatedError(
            f"Cannot {action} {uri}: the cluster does not know the user. {advice}"
        )
    hint = _meaning(HINTS, causes)
    # Java also reports "not found", with the reason, if the system refuses to open a file.
    if name in ("FileNotFoundException", "FileNotFoundError") and not hint:
        return PathNotFoundError(f"Cannot {action} {uri}: it does not exist. Check the path.")
    if name in ("FileAlreadyExistsException", "FileExistsError"):
        return OutputExistsError(f"{text} Something of that name exists already.")
    return StorageError(f"{text} {hint}" if hint else text)


def _meaning(signs: Mapping[str, str], causes: list[tuple[str, str]]) -> str | None:
    lines = (f"{name}: {message}" for name, message in causes)
    return next((text for line in lines if (text := meaning(signs, line))), None)


def _first_line(text: str) -> str:
    return text.strip().split("\n", 1)[0]
