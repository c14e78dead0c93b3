"""Python in a process of its own, to which some folders are closed: root may open everything."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

# Root may open everything, unless it gives these up.
POWERS = "-dac_override,-dac_read_search"
WITHOUT = ["setpriv", f"--bounding-set={POWERS}", f"--inh-caps={POWERS}"]

needs_no_power = pytest.mark.skipif(
    os.geteuid() == 0 and shutil.which("setpriv") is None, reason="root may open everything"
)


def run_locked_out(
    locked: Sequence[Path], arguments: Sequence[str], folder: Path
) -> subprocess.CompletedProcess[bytes]:
    """Run Python in a folder, while it may not open others; these can be opened afterwards."""
    for each in locked:
        each.chmod(0)
    try:
        given_up = WITHOUT if os.geteuid() == 0 else []
        return subprocess.run(
            [*given_up, sys.executable, *arguments],
            capture_output=True,
            timeout=600,
            check=False,
            cwd=folder,
        )
    finally:
        for each in locked:
            each.chmod(0o700)
