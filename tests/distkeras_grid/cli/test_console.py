"""What a command tells, where nobody reads it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

# It goes on to its end after its reader has left, and says so by its exit code.
COMMAND = """
import sys
from pathlib import Path
from distkeras_grid.cli.console import print_note, print_result
from distkeras_grid.cli.common_options import run

def command(_):
    for _ in range(20):
        print_result("a line" * 10_000)
    print_note("all done")
    return 7

sys.exit(run("ls", command, sys.argv[1:]))
"""


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_reader_who_has_left_costs_no_word_and_no_work(form: str) -> None:
    """As in `distkeras-grid logs ID | head`: each line was a traceback of `logging`."""
    with subprocess.Popen(
        [sys.executable, "-c", COMMAND, "--log-format", form],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.read(4)
        process.stdout.close()
        assert process.stderr is not None
        told = process.stderr.read()
        assert process.wait(30) == 7
    assert told.count("\n") == 1
    assert "all done" in told


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
@pytest.mark.parametrize("form", ["text", "json"])
def test_a_full_disk_costs_the_log_and_no_work(form: str) -> None:
    with open("/dev/full", "w", encoding="utf-8") as log:
        command = [sys.executable, "-c", COMMAND, "--log-format", form]
        done = subprocess.run(
            command, stdout=log, stderr=subprocess.PIPE, text=True, check=False, timeout=30
        )
    assert (done.returncode, done.stderr.count("\n")) == (7, 1)
    assert "all done" in done.stderr


def test_a_name_that_the_stream_cannot_write_is_escaped() -> None:
    code = "from distkeras_grid.cli.console import print_result; print_result('5 Ω, \\udcff')"
    environment = {**os.environ, "PYTHONIOENCODING": "latin-1"}
    written = subprocess.check_output([sys.executable, "-c", code], env=environment, timeout=30)
    assert written == b"5 \\u03a9, \\udcff\n"
