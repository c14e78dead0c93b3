"""What the driver of a submission will find, as far as that is known before it starts."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from distkeras_grid.cli.model_functions import check_function
from distkeras_grid.cli.preflight import DEFAULT_FILES, Files, LocalFiles, files_of, local_path

if TYPE_CHECKING:
    from distkeras_grid.submission.command import Submission

# Settings by which modules may reach the driver that this process does not know of.
_MORE_MODULES = re.compile(r"spark\..*(files|archives|python|pythonpath)", re.IGNORECASE)


@dataclass(frozen=True)
class SubmittedDriver:
    """The driver of a submission: in client mode a process here, otherwise in a container."""

    #: Trainers without rounds begin, and a worker takes the slot of one that has finished.
    waits: ClassVar[bool] = True

    submission: Submission  # What is submitted
    own_packages: bool = True  # Whether a container has the packages that are installed here

    def files_of(self, uri: str) -> Files | None:
        """Return where to look for a path; None for files of a container's host."""
        set_anew = any(name in self.submission.settings for name in DEFAULT_FILES)
        files = files_of(uri, set_anew=set_anew)
        return None if self.submission.in_cluster and isinstance(files, LocalFiles) else files

    def slots(self, _: str | None) -> int | None:
        """Return the task slots of the executors; the job's own ``--master`` is not used."""
        return self.submission.slots

    def check_function(self, source: str) -> None:
        """Look for it in ``--py-files``, then in what is installed; in client mode also here."""
        shipped = [file for file in self.submission.py_files if not _is_remote(file)]
        files = [local_path(file).absolute() for file in shipped]
        whole = len(shipped) == len(self.submission.py_files) and not any(
            map(_MORE_MODULES.fullmatch, self.submission.settings)
        )
        if not self.submission.in_cluster:
            where = "in the current directory, in --py-files and where Python finds modules"
            check_function(source, [Path.cwd(), *files], where, whole=whole)
            return
        where = (
            "in --py-files and among the installed packages; the current directory does not go "
            "with a job in cluster mode. Give submit --py-files FILE.py"
        )
        check_function(source, files, where, whole=whole and self.own_packages)


def _is_remote(file: str) -> bool:
    return "://" in file and not file.startswith("file:")
