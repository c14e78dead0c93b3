"""``--log-format json``: each line that a command writes becomes one JSON object.

It happens where lines leave the program, so that all else says what it says in words: commands,
progress, libraries. What Spark's JVM writes does not pass here; its setting
``spark.log.structuredLogging.enabled`` makes JSON of that.
"""

from __future__ import annotations

import io
import json
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, TextIO

TEXT, JSON = "text", "json"


class JsonLines(io.TextIOBase):
    """A stream that writes each line it gets as one JSON object to another one.

    Parameters
    ----------
    stream : text file
    verb : str
        Stands in every object.
    """

    def __init__(self, stream: TextIO, verb: str) -> None:
        self._stream = stream
        self._verb = verb
        # Two threads may each have begun a line.
        self._begun = threading.local()

    def writable(self) -> bool:
        """Tell that it can be written to."""
        return True

    def write(self, text: str) -> int:
        """Take text; its complete lines are written."""
        begun: str = getattr(self._begun, "text", "") + text
        *lines, self._begun.text = begun.replace("\r", "\n").split("\n")
        for line in lines:
            if line.strip():
                self.record("line", line.rstrip())
        return len(text)

    def flush(self) -> None:
        """Hand on what was written."""
        self._stream.flush()

    def record(self, event: str, message: str, level: str = "info", **fields: Any) -> None:
        """Write one object.

        Parameters
        ----------
        event : {"line", "error", "result"}
        message : str
        level : {"info", "error"}, default "info"
        **fields : JSON values
            Further members.
        """
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        head = {"time": now, "level": level, "verb": self._verb, "event": event}
        self._stream.write(json.dumps({**head, "message": message, **fields}) + "\n")
        self._stream.flush()


# What the last line of the command that runs shall say, too.
_fields: dict[str, Any] = {}


def report(**fields: Any) -> None:
    """Add figures to the last line of a command's JSON, such as ``tiles=1200``."""
    _fields.update(fields)


def tell_error(message: str) -> None:
    """Write the line by which a command ends, to standard error."""
    if isinstance(sys.stderr, JsonLines):
        report(error=message)
        sys.stderr.record("error", message, "error")
    else:
        print(message, file=sys.stderr)


def tell_defect() -> None:
    """Write the exception that is being handled, with its traceback, as one line."""
    tell_error(traceback.format_exc().strip())


@contextmanager
def json_lines(verb: str) -> Iterator[Callable[..., None]]:
    """Write both outputs of the program as JSON while the block runs.

    Parameters
    ----------
    verb : str

    Yields
    ------
    callable
        Writes the last line, from the exit code, its name and its meaning.
    """
    outputs = sys.stdout, sys.stderr
    _fields.clear()
    began = time.monotonic()
    out, errors = (JsonLines(stream, verb) for stream in outputs)

    def end(code: int, name: str, meaning: str) -> None:
        level = "info" if code == 0 else "error"
        seconds = round(time.monotonic() - began, 3)
        told = {"exit_code": int(code), "exit": name, "seconds": seconds, **_fields}
        out.record("result", meaning, level, **told)

    sys.stdout, sys.stderr = out, errors
    try:
        yield end
    finally:
        sys.stdout, sys.stderr = outputs
