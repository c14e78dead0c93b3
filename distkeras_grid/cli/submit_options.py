"""What the driver of a submission will find, as far as that is known before it starts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from distkeras_grid.cli.preflight import DEFAULT_FILES, Files, LocalFiles, files_of

if TYPE_CHECKING:
    from distkeras_grid.submission.command import Submission


@dataclass(frozen=True)
class SubmittedDriver:
    """The driver of a submission: in client mode a process here, otherwise in a container."""

    #: Trainers without rounds begin, and a worker takes the slot of one that has finished.
    waits: ClassVar[bool] = True

    submission: Submission  # What is submitted

    def files_of(self, uri: str) -> Files | None:
        """Return where to look for a path; None for files of a container's host."""
        set_anew = any(name in self.submission.settings for name in DEFAULT_FILES)
        files = files_of(uri, set_anew=set_anew)
        return None if self.submission.in_cluster and isinstance(files, LocalFiles) else files

    def slots(self, _: str | None) -> int | None:
        """Return the task slots of the executors; the job's own ``--master`` is not used."""
        return self.submission.slots

    def check_function(self, source: str) -> None:
        """Leave it to the driver, which imports it before Spark starts."""
