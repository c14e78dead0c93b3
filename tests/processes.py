"""The processes of this machine, and fresh interpreters."""

from __future__ import annotations

import os
import subprocess
import sys


def processes() -> list[tuple[int, int, str]]:
    """Return process, parent and command line of each.

    Without ``-ww``, ps cuts lines at ``COLUMNS``, which pytest sets to 80 in processes of its own.
    """
    table = subprocess.check_output(["ps", "-ww", "-eo", "pid=,ppid=,args="], text=True)
    lines = (line.split(None, 2) for line in table.splitlines())
    return [(int(pid), int(parent), command) for pid, parent, command in lines]


def python_output(code: str, python: str = sys.executable, **environment: str) -> list[str]:
    """Run code in a fresh interpreter; return the words that it prints."""
    ended = subprocess.run(
        [python, "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.split()
