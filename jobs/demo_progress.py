"""What the demo says while nothing else speaks, so that it is never silent for 5 seconds."""

from __future__ import annotations

import time

from distkeras_grid.cli.spinner import Spinner
from distkeras_grid.progress import Lines, Reporter, Status

SILENCE = 4.5  # s; longer than what others take between two lines of theirs


class AfterSilence(Lines):
    """Standard output: lines that are said at once, and a state where nothing was said for long."""

    interval = 0.1

    def __init__(self) -> None:
        super().__init__(print)
        self._note_time = time.monotonic()

    def note(self, text: str) -> None:
        """Print a line."""
        self._note_time = time.monotonic()
        super().note(text)

    def show(self, status: Status) -> None:
        """Print the state, if nothing has been printed here of late."""
        if time.monotonic() - self._note_time >= SILENCE:
            self.note(status.line())


# One for all steps: a silence may begin in one step and go on in the next.
LINES = AfterSilence()


def spinner(phase: str, *, to: AfterSilence = LINES) -> Reporter[Spinner]:
    """Return a reporter that breaks each silence of its ``with`` block.

    Parameters
    ----------
    phase : str
        What is done.
    to : AfterSilence
        Where it is told.
    """
    return Reporter(Spinner(phase), to=to, tells_end=False)
