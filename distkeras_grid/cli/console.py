"""All that the command line tells goes through here: by `logging`, as text or as JSON.

What a command has to say is a record of the logger ``distkeras_grid.cli.output``, and goes to
standard output; notes and errors are records of ``distkeras_grid.cli.notes``, and go to standard
error, as progress does (``distkeras_grid.progress``). With ``--log-format json`` the same records
pass a formatter that makes one JSON object of each.
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
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from datetime import UTC, datetime
from typing import Any, TextIO

from distkeras_grid import progress

TEXT, JSON = "text", "json"

OUTPUT = logging.getLogger("distkeras_grid.cli.output")
NOTES = logging.getLogger("distkeras_grid.cli.notes")


class _Stream(logging.StreamHandler[TextIO]):
    """Writes lines for as long as somebody reads them."""

    def handleError(self, record: logging.LogRecord) -> None:
        """Write nothing more to a pipe whose reader has left, such as ``head``."""
        if not isinstance(sys.exc_info()[1], BrokenPipeError):
            super().handleError(record)
            return
        # The work goes on, and its exit code still counts. What the stream holds back would fail
        # again when Python ends, and change that code.
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), self.stream.fileno())


class _StandardStream(_Stream):
    """Writes to what `sys.stdout` or `sys.stderr` is at that moment."""

    def __init__(self, name: str) -> None:
        self._standard = name
        super().__init__()

    @property
    def stream(self) -> TextIO:
        stream: TextIO = getattr(sys, self._standard)
        return stream

    @stream.setter
    def stream(self, value: TextIO) -> None:
        """Ignore what the base class keeps."""


class JsonFormatter(logging.Formatter):
    """Makes one JSON object of each record."""

    def __init__(self, verb: str) -> None:
        super().__init__()
        self._verb = verb

    def format(self, record: logging.LogRecord) -> str:
        """Return the object: time, level, verb, event, message, and the fields of the record."""
        moment = datetime.fromtimestamp(record.created, UTC)
        record_fields = {
            "time": moment.isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "verb": self._verb,
            "event": getattr(record, "event", "line"),
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        return json.dumps(record_fields)


class _Foreign(io.TextIOBase):
    """Takes what others print while all lines are to be JSON: each line becomes a record."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        # Two threads may each have begun a line.
        self._begun = threading.local()

    def writable(self) -> bool:
        """Tell that it can be written to."""
        return True

    def write(self, text: str) -> int:
        """Take text; its complete lines become records."""
        begun: str = getattr(self._begun, "text", "") + text
        *lines, self._begun.text = begun.replace("\r", "\n").split("\n")
        for line in lines:
            if line.strip():
                self._logger.info("%s", line.rstrip())
        return len(text)


def print_result(text: str) -> None:
    """Write lines to standard output."""
    for line in text.split("\n"):
        OUTPUT.info("%s", line)


def print_table(rows: Sequence[Sequence[str]]) -> None:
    """Write rows of cells to standard output, in columns; numbers are aligned to the right."""
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    for row in rows:
        cells = zip(row, widths, strict=True)
        aligned = (f"{cell:{'>' if cell.isdigit() else '<'}{width}}" for cell, width in cells)
        print_result("  ".join(aligned).rstrip())


def print_note(text: str) -> None:
    """Write lines to standard error."""
    for line in text.split("\n"):
        NOTES.info("%s", line)


def print_error(message: str) -> None:
    """Write the line by which a command ends, to standard error."""
    _fields["error"] = message
    NOTES.error("%s", message, extra={"event": "error"})


def tell_defect() -> None:
    """Write the exception that is being handled, with its traceback, as one record."""
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
def json_lines(verb: str) -> Iterator[Callable[..., None]]:
    """Write one JSON object for each line while the block runs."""
    _fields.clear()
    began = time.monotonic()
    out, errors = _Stream(sys.stdout), _Stream(sys.stderr)
    for handler in (out, errors):
        handler.setFormatter(JsonFormatter(verb))
        handler.addFilter(_says_something)

    def end(code: int, name: str, meaning: str) -> None:
        seconds = round(time.monotonic() - began, 3)
        fields = {"exit_code": int(code), "exit": name, "seconds": seconds, **_fields}
        level = logging.INFO if code == 0 else logging.ERROR
        OUTPUT.log(level, "%s", meaning, extra={"event": "result", "fields": fields})

    with ExitStack() as stack:
        stack.enter_context(_handled_by(OUTPUT, out))
        stack.enter_context(_handled_by(NOTES, errors))
        stack.enter_context(_handled_by(progress.LOGGER, errors))
        # What libraries and functions of the user print must not stand raw among the objects.
        stack.enter_context(redirect_stdout(_Foreign(OUTPUT)))
        stack.enter_context(redirect_stderr(_Foreign(NOTES)))
        yield end


def _says_something(record: logging.LogRecord) -> bool:
    # Blank lines part paragraphs of text; as objects they mean nothing.
    return hasattr(record, "event") or bool(record.getMessage().strip())


@contextmanager
def _handled_by(logger: logging.Logger, handler: logging.Handler) -> Iterator[None]:
    """Give a logger one handler, and then back the ones that it had."""
    before, level = list(logger.handlers), logger.level
    logger.handlers[:] = [handler]
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.handlers[:] = before
        logger.setLevel(level)


def _speak_text() -> None:
    """Write records as text: this is a program, so its loggers are its own."""
    for logger, name in ((OUTPUT, "stdout"), (NOTES, "stderr")):
        logger.propagate = False
        logger.setLevel(logging.INFO)
        logger.handlers[:] = [_StandardStream(name)]


_speak_text()
