"""The processes of this machine."""

from __future__ import annotations

import subprocess


def processes() -> list[tuple[int, int, str]]:
    """Return process, parent and command line of each.

    Without ``-ww``, ps cuts lines at ``COLUMNS``, which pytest sets to 80 in processes of its own.
    """
    table = subprocess.check_output(["ps", "-ww", "-eo", "pid=,ppid=,args="], text=True)
    lines = (line.split(None, 2) for line in table.splitlines())
    return [(int(pid), int(parent), command) for pid, parent, command in lines]
