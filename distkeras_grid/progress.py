"""Shows the progress of whatever takes long: runs, transfers, Spark jobs, packing.

A `Reporter` shows a `ProgressState` on a `Surface`: one line that moves on a terminal and in a
notebook, or plain lines elsewhere. A thread repeats the line while all other threads are busy, so
that there are never 5 s of silence.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, ClassVar, Generic, Self, TextIO, TypeVar

HEARTBEAT = 0.25  # s
RATE_HORIZON = 15.0  # s over which a rate is averaged
MAX_WIDTH = 120  # characters
ERASE = "\r\x1b[K"  # Moves a terminal's cursor to the beginning of its line, and empties the line

# Plain lines are written to standard error, unless a program has given this logger a handler.
LOGGER = logging.getLogger("distkeras_grid.progress")

#: Receives a line for a person.
Say = Callable[[str], object]
_UNITS = ("bytes", "kB", "MB", "GB", "TB", "PB")


@dataclass(frozen=True)
class ProgressState:
    """What a `Reporter` shows: here a step whose length is not known."""

    phase: str  # What is being done; rate and seconds start again with another one

    @property
    def turn(self) -> Hashable:
        """A change of this value is shown at once."""
        return None

    @property
    def amount(self) -> int:
        """The quantity whose growth is the rate."""
        return 0

    def parts(self, rate: float, seconds: float) -> Sequence[str]:  # noqa: ARG002
        """Return the content of the line; the last parts are left out if they do not fit.

        `seconds`: time in this phase so far [s].
        """
        return [self.phase, f"{seconds:.0f} s"]


@dataclass(frozen=True)
class Bytes(ProgressState):
    """A copy of so many bytes."""

    total: int = 0
    done: int = 0

    @property
    def amount(self) -> int:
        """Bytes so far."""
        return self.done

    def parts(self, rate: float, seconds: float) -> Sequence[str]:  # noqa: ARG002
        """Return how far it is."""
        parts = [self.phase, f"{format_bytes(self.done)} of {format_bytes(self.total)}"]
        if rate > 0:
            left = max(0, self.total - self.done) / rate
            parts += [f"{format_bytes(rate)}/s", f"{clock_time(left)} left"]
        return parts


def one_line(parts: Sequence[str], width: int = MAX_WIDTH) -> str:
    """Return the parts that fit as one line of at most `width` characters."""
    line = parts[0][:width]
    for part in parts[1:]:
        if len(line) + 2 + len(part) > width:
            break
        line += "  " + part
    return line


class Surface(ABC):
    """Where progress is shown; calling it writes a line that stays."""

    # Seconds between two lines of one phase.
    interval: ClassVar[float]

    @abstractmethod
    def show(self, parts: Sequence[str]) -> None:
        """Tell how it is now, in place of how it was where that is possible."""

    @abstractmethod
    def __call__(self, text: str) -> None:
        """Write a line that stays."""

    def close(self) -> None:  # noqa: B027
        """Leave what was shown last as it is; the surface can be used again."""


class Lines(Surface):
    """Plain lines, one below the other: files, pipes, batch logs.

    `say`: receives each line without its newline.
    """

    # With the heartbeat, below 5 s of silence.
    interval = 4.0

    def __init__(self, say: Say) -> None:
        self._say = say

    def show(self, parts: Sequence[str]) -> None:
        """Write the state as a line."""
        self._say(one_line(parts))

    def __call__(self, text: str) -> None:
        """Write a line."""
        self._say(text)


class Terminal(Surface):
    """A line that moves."""

    interval = 0.2

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._line = ""

    def show(self, parts: Sequence[str]) -> None:
        """Write over the line."""
        # One column less: some terminals wrap a full line.
        self._line = one_line(parts, min(MAX_WIDTH, self._columns() - 1))
        self._write(ERASE + self._line)

    def __call__(self, text: str) -> None:
        """Write a line above the one that moves."""
        self._write(f"{ERASE if self._line else ''}{text}\n{self._line}")

    def close(self) -> None:
        """End the line."""
        if self._line:
            self._line = ""
            self._write("\n")

    def _columns(self) -> int:
        try:
            return os.get_terminal_size(self._stream.fileno()).columns or 80
        except OSError:
            return 80

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


class Notebook(Surface):
    """A display that is replaced, so that a saved notebook keeps its last state only."""

    interval = 0.5

    def __init__(self) -> None:
        self._display: Any = None

    def show(self, parts: Sequence[str]) -> None:
        """Replace the display."""
        from IPython.display import display

        content = {"text/plain": one_line(parts)}
        if self._display is None:
            self._display = display(content, raw=True, display_id=True)
        else:
            self._display.update(content, raw=True)

    def __call__(self, text: str) -> None:
        """Write a line below; not to standard error, which notebooks show as an alarm."""
        sys.stdout.write(text + "\n")
        sys.stdout.flush()

    def close(self) -> None:
        """Leave the display as it is."""
        self._display = None


SILENT = Lines(lambda _: None)


def surface(stream: TextIO | None = None, *, timed: bool = False) -> Surface:
    """Return the surface that suits where this program runs."""
    if stream is None and LOGGER.handlers:
        return Lines(LOGGER.info)
    if stream is None and _in_notebook():
        return Notebook()
    written = sys.stderr if stream is None else stream
    if written.isatty() and os.environ.get("TERM") not in ("dumb", "unknown"):
        return Terminal(written)

    def say(text: str) -> None:
        written.write((f"{datetime.now():%Y-%m-%d %H:%M:%S} " if timed else "") + text + "\n")
        written.flush()

    return Lines(say)


AnyState = TypeVar("AnyState", bound=ProgressState)


class Reporter(Generic[AnyState]):
    """Tells of a state while its ``with`` block runs; any thread may change it.

    `at_once`: show the beginning; otherwise what soon ends is silent.
    `clock`: returns seconds.

    Examples
    --------
    >>> copied = Bytes("packing", 200_000_000)
    >>> with Reporter(copied, to=print, clock=lambda: 0.0) as progress:
    ...     progress.update(done=100_000_000)
    ...     progress.tick()
    ...     progress.add(done=100_000_000)
    packing  100 MB of 200 MB
    packing  200 MB of 200 MB
    """

    def __init__(
        self,
        state: AnyState,
        *,
        to: Say | None = None,
        clock: Callable[[], float] = time.monotonic,
        at_once: bool = True,
    ) -> None:
        self._state = state
        self._surface = surface() if to is None else to if isinstance(to, Surface) else Lines(to)
        self._clock = clock
        self._shown_at = -float("inf") if at_once else clock()
        # What was silent so far ends in silence.
        self._shown: str | None = "" if at_once else None
        # The heartbeat and others tell of the same state.
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._heart = threading.Thread(target=self._beat, name="progress", daemon=True)
        self._begin_phase()

    def __enter__(self) -> Self:
        self._heart.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._closing.set()
        self._heart.join()
        with self._lock:
            # After an error there may be nobody left who could tell the state.
            if kind is None and self._shown is not None:
                parts = self._parts()
                if one_line(parts) != self._shown:
                    self._surface.show(parts)
            self._surface.close()

    @property
    def state(self) -> AnyState:
        """The state as it is now."""
        with self._lock:
            return self._state

    def begin(self, state: AnyState) -> None:
        """Start a phase with a state of its own."""
        with self._lock:
            self._change(state)

    def update(self, **changes: Any) -> None:
        """Change fields of the state; None leaves a field as it is.

        A new turn of the state is shown at once, everything else with the next heartbeat that is
        due.
        """
        values = {name: value for name, value in changes.items() if value is not None}
        with self._lock:
            self._change(replace(self._state, **values))

    def add(self, **counts: int) -> None:
        """Add to fields of the state; a negative number takes back."""
        with self._lock:
            sums = {name: getattr(self._state, name) + count for name, count in counts.items()}
            self._change(replace(self._state, **sums))

    def note(self, text: str) -> None:
        """Write a line that stays."""
        with self._lock:
            self._surface(text)

    def tick(self) -> None:
        """Tell the state again if that is due; the heartbeat calls this."""
        with self._lock:
            if self._clock() - self._shown_at >= self._surface.interval:
                self._show()

    def _beat(self) -> None:
        while not self._closing.wait(HEARTBEAT):
            self.tick()

    def _change(self, state: AnyState) -> None:
        before, self._state = self._state, state
        if state.phase != before.phase:
            self._begin_phase()
        if state.turn != before.turn:
            self._show()

    def _begin_phase(self) -> None:
        self._phase_began = self._clock()
        # Times and amounts of late.
        self._amounts = deque([(self._phase_began, self._state.amount)])

    def _parts(self) -> Sequence[str]:
        now, amounts = self._clock(), self._amounts
        amounts.append((now, self._state.amount))
        while len(amounts) > 2 and amounts[1][0] <= now - RATE_HORIZON:
            amounts.popleft()
        began, amount = amounts[0]
        rate = (self._state.amount - amount) / (now - began) if now > began else 0.0
        return self._state.parts(rate, now - self._phase_began)

    def _show(self) -> None:
        parts = self._parts()
        self._shown = one_line(parts)
        self._surface.show(parts)
        self._shown_at = self._clock()


def clock_time(seconds: float) -> str:
    """Return a duration in hours, minutes and seconds."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def format_bytes(size: float) -> str:
    """Return a number of bytes with two or three digits.

    Examples
    --------
    >>> format_bytes(999), format_bytes(12_345), format_bytes(1_999_999)
    ('999 bytes', '12 kB', '2.0 MB')
    """
    unit = 0
    while size >= 999.5 and unit + 1 < len(_UNITS):
        size /= 1000
        unit += 1
    digits = 1 if unit and size < 9.95 else 0
    return f"{size:.{digits}f} {_UNITS[unit]}"


def _in_notebook() -> bool:
    # IPython is looked for, not imported: whoever runs in a kernel has it loaded.
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return hasattr(shell, "kernel")
