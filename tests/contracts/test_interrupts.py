"""Ctrl-C to each verb in each phase: it ends with 130, its last line is `interrupted`.

The signal goes to the process alone, as `kill` sends it, and to its group, as a terminal does,
which reaches the Python workers, too.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import psutil
import pytest
from PIL import Image

from data_prep import TileSpec, TilingSettings, tile_images
from data_prep.spark.driver import executor_errors
from distkeras_grid.cli.exit_codes import ExitCode
from distkeras_grid.signals import terminable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

COMMAND = """
import signal, sys
from distkeras_grid.cli.main import main
# These tests may run in a script's background, where SIGINT is ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
raise SystemExit(main())
"""
START = "start"
SECONDS = 240
TILE = "--tile 32 --allow-empty --near-duplicates off"
#: The flags of each verb that starts Spark; {raw} takes long to look at, and {few} to cut.
VERBS = {
    "tile": f"--input {{raw}} --output {{new}} {TILE}",
    "tile --plan": f"--input {{raw}} --output {{new}} {TILE}",
    "ingest": "--input {raw} --output {new} --size 32 --allow-empty",
    "check-leaks": "--data {raw} --splits ^(?P<split>.)",
    "export": "--data {tiles} --output {new} --format png",
    "train": "--data {tiles} --output {new} --model small_net:build --features image --epochs 9999",
    "predict": "--data {tiles} --output {new} --model {model}",
    "evaluate": "--data {tiles} --prediction label",
    "folds": "--data {tiles} --by 2",
    "revise": "--data {tiles} --labels {table}",
    "compact": "--data {tiles}",
    "versions": "--data {tiles}",
    "doctor": "--workers 1",
}
#: What the progress of a verb says in a phase that takes long.
PHASES = {
    "tile": ("looking at", "cutting  "),
    "tile --plan": ("looking at",),
    "ingest": ("looking at",),
    "check-leaks": ("looking at",),
    "train": ("epoch",),
}
#: Every verb in each phase, with the signal to the process ("kill") and to its group ("killpg").
CASES = [
    (verb, phase, send)
    for verb in VERBS
    for phase in (START, *PHASES.get(verb, ()))
    for send in ("kill", "killpg")
]


def marked(case: tuple[str, str, str]) -> object:
    return pytest.param(*case, marks=[] if case == ("tile", START, "killpg") else pytest.mark.full)


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("interrupts")
    pixels = np.random.default_rng(0).integers(0, 255, (1500, 1500), np.uint8)
    for label in ("a", "b"):
        (root / "raw" / label).mkdir(parents=True)
        (root / "few" / label).mkdir(parents=True)
        Image.fromarray(pixels).save(root / "raw" / label / "0.png")
        for number in range(1, 150):
            # Links take no space.
            os.link(root / "raw" / label / "0.png", root / "raw" / label / f"{number}.png")
    for number, label in enumerate("aabb"):
        Image.fromarray(pixels // (number + 1)).save(root / "few" / label / f"{number}.png")
    (root / "model.keras").write_bytes(b"It is not read so early.")
    (root / "table.csv").write_text("file,label\na/0.png,b\n")
    names = {"raw": "raw", "few": "few", "model": "model.keras", "table": "table.csv"}
    return {each: root / name for each, name in names.items()}


@pytest.fixture(scope="module")
def tiles(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("tiles")
    pixels = np.random.default_rng(0).integers(0, 255, (64, 200), np.uint8)
    for label in ("a", "b"):
        (root / "raw" / label).mkdir(parents=True)
        Image.fromarray(pixels[: 32 + ord(label) - 97]).save(root / "raw" / label / "0.png")
    spec = TileSpec(32, angles=[0])
    settings = TilingSettings(
        *(str(root / "raw"), str(root / "tiles"), spec), allow_empty=True, near_duplicates="off"
    )
    tile_images(settings, spark=spark)
    return root / "tiles"


@pytest.mark.parametrize(("verb", "phase", "send"), [marked(case) for case in CASES])
def test_ctrl_c_ends_a_verb_with_130_in_each_phase(
    paths: dict[str, Path],
    tmp_path: Path,
    request: pytest.FixtureRequest,
    verb: str,
    phase: str,
    send: str,
) -> None:
    flags = VERBS[verb]
    places = {**paths, "new": tmp_path / "new"}
    if phase.startswith("cutting"):
        places["raw"] = paths["few"]
    if "{tiles}" in flags:
        places["tiles"] = request.getfixturevalue("tiles")
    arguments = [each.format(**places) for each in (*verb.split(), *flags.split())]
    with subprocess.Popen(
        [sys.executable, "-c", COMMAND, *arguments, "--master", "local[2,4]"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        process_group=0,
        cwd=Path(__file__).parents[1] / "jobs",  # where small_net lies
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, sys.path))},
    ) as process:
        try:
            told = until_phase(process, phase)
            getattr(os, send)(process.pid, signal.SIGINT)
            rest, _ = process.communicate(timeout=60)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    lines = [*told, *rest.splitlines()]
    assert process.returncode == ExitCode.INTERRUPTED, lines
    # Spark's own daemons may write of pipes that break when their tasks are killed, also later, and
    # its JVM what it logs while it starts.
    assert "interrupted" in lines, lines
    after = [
        line
        for line in lines[lines.index("interrupted") + 1 :]
        if not re.match(r"\d\d/\d\d/\d\d [\d:]+ WARN ", line)
    ]
    assert not after or after[-1].startswith("BrokenPipeError"), lines
    own = (f'File "{Path(__file__).parents[2]}/d', "Spark gave up")
    assert not any(word in line for line in lines for word in own), lines
    left = [each.name for each in places["new"].glob("*")]
    # A folder that tile has begun is empty, or has what a later command deletes.
    assert "_versions" not in left


def until_phase(process: subprocess.Popen[str], phase: str) -> list[str]:
    """Wait for a phase of a command, and then a moment; return the lines that it has written."""
    if phase == START:
        deadline = time.monotonic() + SECONDS
        while not any(each.name() == "java" for each in psutil.Process(process.pid).children()):
            assert time.monotonic() < deadline
            assert process.poll() is None, process.stdout.read()
            time.sleep(0.05)
        time.sleep(1.0)
        return []
    told = []
    for line in process.stdout:
        told.append(line.rstrip())
        if phase in line:
            break
    assert process.poll() is None, told
    time.sleep(1.5)
    return told


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_error_of_a_cancelled_job_is_told_as_the_interrupt(
    spark: SparkSession, number: int
) -> None:
    """PySpark cancels the job, and its error came in the place of KeyboardInterrupt."""

    def sleep(batches):
        time.sleep(60)
        yield from batches

    def work() -> None:
        with executor_errors(spark, "somewhere", "sleeping in"):
            spark.range(2).mapInArrow(sleep, "id long").toArrow()

    def interrupt() -> None:
        # Before the job has begun there is nothing to cancel, and PySpark waits for its end. A job
        # that an earlier test cancelled may still count as active.
        deadline = time.monotonic() + 120
        while not {*tracker.getActiveJobsIds()} - before and time.monotonic() < deadline:
            time.sleep(0.1)
        interrupted_at.append(time.monotonic())
        os.kill(os.getpid(), number)

    interrupted_at: list[float] = []
    tracker = spark.sparkContext.statusTracker()
    before = {*tracker.getActiveJobsIds()}
    with terminable():
        thread = threading.Thread(target=interrupt)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            work()
        thread.join()
    assert time.monotonic() - interrupted_at[0] < 30
