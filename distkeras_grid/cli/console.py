"""All that the command line tells goes through here, as text or as JSON.

What a command has to say goes to standard output; notes, errors and progress go to standard error.
With ``--log-format json`` both streams make one JSON object of each line.
"""

from __future__ import annotations

import io
import json
import logging
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from datetime import UTC, datetime
from typing import Any, TextIO, cast

from distkeras_grid import progress

TEXT, JSON = "text", "json"


class JsonLines(io.TextIOBase):
    """A standard stream on which each line becomes a JSON object, whoever writes it."""

    def __init__(self, stream: TextIO, verb: str) -> None:
        self._stream, self._verb = stream, verb
        # Two threads may each have begun a line.
        self._begun = threading.local()

    def writable(self) -> bool:
        """Tell that it can be written to."""
        return True

    def write(self, text: str) -> int:
        """Take text; its complete lines become objects, but for those that part paragraphs."""
        begun: str = getattr(self._begun, "text", "") + text
        *lines, self._begun.text = begun.replace("\r", "\n").split("\n")
        for line in lines:
            if line.strip():
                self.emit("line", line.rstrip())
        return len(text)

    def emit(self, event: str, message: str, level: str = "info", **fields: Any) -> None:
        """Write an object: time, level, verb, event, message, and more fields."""
        line = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "level": level,
            "verb": self._verb,
            "event": event,
            "message": message,
            **fields,
        }
        _write(self._stream, json.dumps(line))


def _write(stream: TextIO, text: str) -> None:
    """Write a line for as long as somebody takes it; the work does not depend on it."""
    try:
        try:
            stream.write(text + "\n")
        except UnicodeEncodeError:
            encoded = text.encode(stream.encoding, "backslashreplace")
            stream.write(encoded.decode(stream.encoding) + "\n")
        stream.flush()
    except OSError:
        # Its reader has left, such as ``head``, or its disk is full. The work goes on, and its exit
        # code still counts. What the stream holds back would fail again when Python ends, and
        # change that code.
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), stream.fileno())


def print_result(text: str) -> None:
    """Write lines to standard output."""
    _write(sys.stdout, text)


def print_table(rows: Sequence[Sequence[str]]) -> None:
    """Write rows of cells to standard output, in columns; numbers are aligned to the right."""
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    for row in rows:
        cells = zip(row, widths, strict=True)
        aligned = (f"{cell:{'>' if cell.isdigit() else '<'}{width}}" for cell, width in cells)
        print_result("  ".join(aligned).rstrip())


def print_note(text: str) -> None:
    """Write lines to standard error."""
    _write(sys.stderr, text)


def print_error(message: str) -> None:
    """Write the line by which a command ends, to standard error."""
    _fields["error"] = message
    if isinstance(sys.stderr, JsonLines):
        sys.stderr.emit("error", message, "error")
    else:
        print_note(message)


def tell_defect() -> None:
    """Write the exception that is being handled, with its traceback, as one object."""
    print_error(traceback.format_exc().strip())


def output() -> progress.Surface:
    """Return where a command tells its progress among its lines: it moves on a terminal."""
    return progress.surface(sys.stdout) if sys.stdout.isatty() else progress.Lines(print_result)


# What the last line of the command that runs shall say, too.
_fields: dict[str, Any] = {}


def report(**fields: Any) -> None:
    """Add figures to the last line of a command's JSON, such as ``tiles=1200``."""
    _fields.update(fields)


@contextmanager
def json_lines(verb: str) -> Iterator[Callable[[int, str, str], None]]:
    """Write one JSON object for each line while the block runs; yield what writes the last one."""
    _fields.clear()
    began = time.monotonic()
    lines, notes = JsonLines(sys.stdout, verb), JsonLines(sys.stderr, verb)

    def end(code: int, name: str, meaning: str) -> None:
        seconds = round(time.monotonic() - began, 3)
        fields = {"exit_code": int(code), "exit": name, "seconds": seconds, **_fields}
        lines.emit("result", meaning, "info" if code == 0 else "error", **fields)

    # Without it, progress begins with a time of its own.
    handler = logging.StreamHandler(cast(TextIO, notes))
    level = progress.LOGGER.level
    progress.LOGGER.addHandler(handler)
    progress.LOGGER.setLevel(logging.INFO)
    try:
        # What libraries and functions of the user print must not stand raw among the objects.
        with redirect_stdout(cast(TextIO, lines)), redirect_stderr(cast(TextIO, notes)):
            yield end
    finally:
        progress.LOGGER.removeHandler(handler)
        progress.LOGGER.setLevel(level)
