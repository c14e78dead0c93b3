"""Finds the line of a log that says why a program failed: pure functions of its text.

The last lines of a log are often those of a shutdown, or the lower half of a stack.
"""

from __future__ import annotations

import json
import re
from itertools import groupby

from distkeras_grid.errors import UNREADABLE

# A class of Python or Java whose name says that something went wrong, at the beginning of a line.
_RAISED = re.compile(
    r"""(?:Caused\ by:\ |Exception\ in\ thread\ "[^"]*"\ )?
    (?P<what>(?:[\w$]+\.)*[A-Z][\w$]*(?:Error|Exception|Interrupt|ExitCode\w*)(?::.*)?)""",
    re.VERBOSE,
)
# What log4j writes at a level that ends a program.
_FATAL = re.compile(r"\S+(?: \S+)? (?:ERROR|FATAL) \S.*")
# The time before a line.
_TIME = re.compile(r"[\d/-]*[T ]?\d\d:\d\d:\d\d\S*\s+")
_STACK = re.compile(r"\s+at |\s+\.\.\. \d+ more|\s+File \"|Traceback \(most recent call last\)")


def cause(text: str) -> str | None:
    r"""Return the line that says why a program failed; None if no line does.

    That is the last exception of Python or Java (the innermost cause of a chain), or else the last
    line that log4j marks as an error. Lines of JSON are read as ``--log-format json`` writes them.
    """
    raised = fatal = None
    for line in text.splitlines():
        message = _message(line)
        if message is None:
            continue
        if match := _RAISED.fullmatch(message):
            raised = match["what"]
        elif _FATAL.fullmatch(message):
            fatal = message
    return raised or fatal


def end(text: str, lines: int) -> str:
    r"""Return the last lines of a log, without blank lines and stack traces; equal ones once.

    Examples
    --------
    >>> end("sum 3\n12:00:01 epoch 5/9\n12:00:16 epoch 5/9\n\nbye\n", 2)
    '12:00:16 epoch 5/9  (2 times)\nbye'
    """
    messages = [line for line in text.splitlines() if line.strip() and not _STACK.match(line)]
    runs = [list(run) for _, run in groupby(messages, lambda line: _TIME.sub("", line))]
    many = [f"  ({len(run)} times)" if len(run) > 1 else "" for run in runs]
    return "\n".join(run[-1] + times for run, times in list(zip(runs, many, strict=True))[-lines:])


def cause_and_end(text: str, lines: int) -> str:
    """Return the line that `cause` finds, and after it the end of the log."""
    why, last = cause(text), end(text, lines)
    return last if why is None or last == why else f"{why}\n{last}"


def line_of(text: str) -> str:
    """Return what a line says; of one of ``--log-format json``, its message."""
    try:
        record = json.loads(text) if text.startswith("{") else None
    except UNREADABLE:
        return text
    return str(record.get("message", text)) if isinstance(record, dict) else text


def _message(line: str) -> str | None:
    """Return the message of a line; None for a JSON object without an error."""
    if not line.startswith("{"):
        return line.rstrip()
    try:
        record = json.loads(line)
    except UNREADABLE:
        return line.rstrip()
    if isinstance(record, dict) and record.get("event") == "error":
        # A defect's record has its whole traceback.
        return next(reversed(str(record.get("message")).strip().splitlines()), None)
    return None
