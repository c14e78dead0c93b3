"""Shows the progress of whatever takes long: runs, transfers, Spark jobs, packing.

A `Reporter` shows a `RunProgress`, a value that describes itself, on a `Surface`: one line that
moves on a terminal (rich) and in a notebook, or plain lines elsewhere. A thread repeats the line
while all other threads are busy, so that there are never 5 s of silence.
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
from typing import Any, ClassVar, Generic, Protocol, Self, TextIO, TypeVar

HEARTBEAT = 0.25  # s
RATE_HORIZON = 15.0  # s over which a rate is averaged
MAX_WIDTH = 120  # characters
BAR_WIDTH = 20  # characters
ROOM_FOR_A_BAR = 100  # characters; on narrower terminals words tell more

# Plain lines are written to standard error, unless a program has given this logger a handler.
LOGGER = logging.getLogger("distkeras_grid.progress")

#: Receives a line for a person.
Say = Callable[[str], object]
_UNITS = ("bytes", "kB", "MB", "GB", "TB", "PB")


@dataclass(frozen=True, slots=True)
class Status:
    """The content of a progress line."""

    # The first one is always shown. The others are left out from the right if they do not fit.
    parts: Sequence[str]
    # The part that is done, from 0 to 1. A terminal shows it as a bar.
    fraction: float | None = None

    def line(self, width: int = MAX_WIDTH) -> str:
        """Return the parts as one line of at most `width` characters."""
        line = self.parts[0][:width]
        for part in self.parts[1:]:
            if len(line) + 2 + len(part) > width:
                break
            line += "  " + part
        return line


class RunProgress(Protocol):
    """What a `Reporter` shows; a frozen dataclass."""

    @property
    def phase(self) -> str:
        """What is being done, in words; rate and seconds start again with another one."""

    @property
    def turn(self) -> Hashable:
        """A change of this value is shown at once."""

    @property
    def amount(self) -> int:
        """The quantity whose growth is the rate."""

    def status(self, rate: float, seconds: float) -> Status:
        """Return the content of the progress line.

        `seconds`: time in this phase so far [s].
        """


class Surface(ABC):
    """Where progress is shown; calling it writes a line there."""

    # Seconds between two lines of one phase.
    interval: ClassVar[float]

    @abstractmethod
    def show(self, status: Status) -> None:
        """Tell how it is now, in place of how it was where that is possible."""

    @abstractmethod
    def note(self, text: str) -> None:
        """Write a line that stays."""

    @abstractmethod
    def close(self) -> None:
        """Leave what was shown last as it is; the surface can be used again."""

    def __call__(self, text: str) -> None:
        """Write a line that stays, as any function that takes lines does."""
        self.note(text)


class Lines(Surface):
    """Plain lines, one below the other: files, pipes, batch logs.

    `say`: receives each line without its newline.
    """

    # With the heartbeat, below 5 s of silence.
    interval = 4.0

    def __init__(self, say: Callable[[str], object]) -> None:
        self._say = say

    def show(self, status: Status) -> None:
        """Write the state as a line."""
        self._say(status.line())

    def note(self, text: str) -> None:
        """Write a line."""
        self._say(text)

    def close(self) -> None:
        """Do nothing."""


class Terminal(Surface):
    """A line that moves, with a bar where it is known how much is done."""

    interval = 0.2

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console

        self._console = Console(
            file=stream, force_terminal=True, force_jupyter=False, highlight=False
        )
        self._live: Any = None

    def show(self, status: Status) -> None:
        """Write over the line."""
        from rich.live import Live

        shown = self._renderable(status)
        if self._live is None:
            self._live = Live(
                shown,
                console=self._console,
                auto_refresh=False,
                # What others print is theirs.
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._live.start(refresh=True)
        else:
            self._live.update(shown, refresh=True)

    def note(self, text: str) -> None:
        """Write a line above the one that moves."""
        from rich.text import Text

        self._console.print(Text(text), soft_wrap=True)

    def close(self) -> None:
        """End the line."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _renderable(self, status: Status) -> Any:
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        # One column less: some terminals wrap a full line.
        width = min(MAX_WIDTH, self._console.width - 1)
        if status.fraction is None or width < ROOM_FOR_A_BAR:
            return Text(status.line(width), no_wrap=True, end="")
        bar = ProgressBar(total=1.0, completed=status.fraction, width=BAR_WIDTH)
        first, *others = status.line(width - BAR_WIDTH - 2).split("  ", 1)
        row = Table.grid(padding=(0, 2))
        row.add_row(Text(first), bar, Text("".join(others), no_wrap=True))
        return row


class Notebook(Surface):
    """A display that is replaced, so that a saved notebook keeps its last state only."""

    interval = 0.5

    def __init__(self) -> None:
        self._display: Any = None

    def show(self, status: Status) -> None:
        """Replace the display."""
        from IPython.display import display

        content = {"text/plain": status.line()}
        if self._display is None:
            self._display = display(content, raw=True, display_id=True)
        else:
            self._display.update(content, raw=True)

    def note(self, text: str) -> None:
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


AnyState = TypeVar("AnyState", bound=RunProgress)


class Reporter(Generic[AnyState]):
    """Tells of a state while its ``with`` block runs; any thread may change it.

    `clock`: returns seconds.

    Examples
    --------
    >>> copied = Bytes("packing", 200_000_000)
    >>> with Reporter(copied, to=print, clock=lambda: 0.0) as progress:
    ...     progress.update(done=100_000_000)
    ...     progress.tick()
    ...     progress.add(done=100_000_000)
    packing  100 of 200 MB
    packing  200 of 200 MB
    """

    def __init__(
        self,
        state: AnyState,
        *,
        to: Callable[[str], object] | None = None,
        clock: Callable[[], float] = time.monotonic,
        at_once: bool = True,
        tells_end: bool = True,
    ) -> None:
        self._state = state
        self._surface = surface() if to is None else to if isinstance(to, Surface) else Lines(to)
        self._clock = clock
        self._tells_end = tells_end
        self._began = clock()
        self._shown_at = -float("inf") if at_once else self._began
        self._shown: Status | None = None
        # What was silent so far ends in silence.
        self._silent = not at_once
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
            if kind is None and self._tells_end and not self._silent:
                self._show_if_changed()
            self._surface.close()

    @property
    def seconds(self) -> float:
        """Time since this reporter was made [s]."""
        return self._clock() - self._began

    @property
    def state(self) -> AnyState:
        """The state as it is now."""
        with self._lock:
            return self._state

    def begin(self, state: AnyState) -> None:
        """Start a phase with a state of its own."""
        with self._lock:
            self._change(state, restart=True)

    def update(self, **changes: Any) -> None:
        """Change fields of the state; None leaves a field as it is.

        A new turn of the state is shown at once, everything else with the next heartbeat that is
        due.
        """
        values = {name: value for name, value in changes.items() if value is not None}
        with self._lock:
            self._change(_replaced(self._state, values))

    def add(self, **counts: int) -> None:
        """Add to fields of the state; a negative number takes back."""
        with self._lock:
            sums = {name: getattr(self._state, name) + count for name, count in counts.items()}
            self._change(_replaced(self._state, sums))

    def note(self, text: str) -> None:
        """Write a line that stays."""
        with self._lock:
            self._surface.note(text)

    def tick(self) -> None:
        """Tell the state again if that is due; the heartbeat calls this."""
        with self._lock:
            if self._is_due():
                self._show()

    def _beat(self) -> None:
        while not self._closing.wait(HEARTBEAT):
            self.tick()

    def _change(self, state: AnyState, *, restart: bool = False) -> None:
        before, self._state = self._state, state
        if restart or state.phase != before.phase:
            self._begin_phase()
        if state.turn != before.turn:
            self._show()

    def _begin_phase(self) -> None:
        self._phase_began = self._clock()
        self._rate = RecentRate()
        self._rate.add(self._phase_began, self._state.amount)

    def _is_due(self) -> bool:
        return self._clock() - self._shown_at >= self._surface.interval

    def _status(self) -> Status:
        now = self._clock()
        self._rate.add(now, self._state.amount)
        return self._state.status(self._rate.at(now), now - self._phase_began)

    def _show(self) -> None:
        self._shown = self._status()
        self._surface.show(self._shown)
        self._silent = False
        self._shown_at = self._clock()

    def _show_if_changed(self) -> None:
        status = self._status()
        if self._shown is None or status.line() != self._shown.line():
            self._surface.show(status)


def _replaced(state: AnyState, changes: dict[str, Any]) -> AnyState:
    # A protocol cannot tell that its members are dataclasses.
    before: Any = state
    changed: AnyState = replace(before, **changes)
    return changed


@dataclass(frozen=True, slots=True)
class Bytes:
    """The state of one long copy."""

    phase: str  # What is done, such as ``"packing"``
    total: int  # total and done: Bytes in all, and so far
    done: int = 0

    @property
    def turn(self) -> Hashable:
        """Nothing is told before it is due."""
        return None

    @property
    def amount(self) -> int:
        """Bytes so far."""
        return self.done

    def status(self, rate: float, seconds: float) -> Status:  # noqa: ARG002
        """Return how far it is."""
        parts = [self.phase, f"{self.done / 1e6:.0f} of {self.total / 1e6:.0f} MB"]
        if rate > 0:
            left = max(0, self.total - self.done) / rate
            parts += [f"{format_bytes(rate)}/s", f"{clock_time(left)} left"]
        return Status(parts, min(1.0, self.done / max(1, self.total)))


class RecentRate:
    """How fast a count has grown of late."""

    def __init__(self) -> None:
        self._counts: deque[tuple[float, int]] = deque()

    def add(self, now: float, count: int) -> None:
        """Note a count at a time [s]."""
        self._counts.append((now, count))
        while len(self._counts) > 2 and self._counts[1][0] <= now - RATE_HORIZON:
            self._counts.popleft()

    def at(self, now: float) -> float:
        """Return the growth a second up to now; 0 where it is not known."""
        if not self._counts or now <= self._counts[0][0]:
            return 0.0
        began, count = self._counts[0]
        return (self._counts[-1][1] - count) / (now - began)


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
