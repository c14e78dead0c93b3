"""Archives of environments: which there are, who needs them, which may go."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from distkeras_grid.cli.environments import build_parser, row
from distkeras_grid.spark.storage import Storage
from distkeras_grid.submission.archive import DIGEST
from distkeras_grid.submission.archives import DAY, Archive, archives_in, delete, outdated
from tests.distkeras_grid.submission.test_applications import RUNNING

NAMES = [f"environment-3.11.7-{number:016x}.tar.gz" for number in range(4)]


def filled(folder: Path) -> Path:
    """Return a folder of archives that are 0, 40, 80 and 120 days old, and of other files."""
    folder.mkdir(parents=True)
    for number, name in enumerate(NAMES):
        (folder / name).write_bytes(b"x" * (1000 + number))
        (folder / (name + DIGEST)).write_text("digest")
        at = time.time() - 40 * DAY * number
        os.utime(folder / name, (at, at))
    (folder / "data.tar.gz").write_bytes(b"theirs")
    return folder


@pytest.mark.spark
def test_what_nobody_needs_goes_and_nothing_else(spark, tmp_path: Path):
    folder, storage = filled(tmp_path / "environments"), Storage(spark)
    running = replace(RUNNING, tags=("distkeras-grid-1", NAMES[2]))
    ended = replace(RUNNING, state="FINISHED", tags=(NAMES[3],))
    found = archives_in(folder.as_uri(), storage, NAMES[1], [running, ended])
    assert [(each.name, each.size) for each in found] == [
        (name, 1000 + number) for number, name in enumerate(NAMES)
    ]
    assert [each.used_by for each in found] == [(), ("this environment",), (RUNNING.id,), ()]
    (old,) = outdated(found, 30, time.time())
    assert old.name == NAMES[3]
    delete(old, storage)
    left = {path.name for path in folder.iterdir()}
    assert left == {"data.tar.gz", *NAMES[:3], *(name + DIGEST for name in NAMES[:3])}


@pytest.mark.spark
def test_a_folder_that_is_not_there_has_none(spark, tmp_path: Path):
    assert archives_in((tmp_path / "no").as_uri(), Storage(spark), NAMES[0], []) == []


def test_each_archive_has_a_line():
    archive = Archive(f"file:///a/{NAMES[0]}", 2 * 10**6, 0.0, ("this environment",))
    assert row(archive, now=1.5 * DAY) == ("1.5", "2.0 MB", "this environment", archive.uri)


@pytest.mark.parametrize("text", ["-1", "nan", "inf", "a week"])
def test_an_age_is_a_number_of_days(text):
    with pytest.raises(SystemExit):
        build_parser().parse_args(["prune", "--older-than", text])


@pytest.mark.full
@pytest.mark.spark
def test_the_command_plans_and_deletes_on_this_machine(tmp_path: Path):
    folder = filled(tmp_path / "distkeras_grid" / "environments")
    environment = {name: value for name, value in os.environ.items() if "CONF_DIR" not in name}
    command = [str(Path(sys.executable).with_name("distkeras-grid")), "environments"]

    def run(*arguments: str) -> str:
        done = subprocess.run(
            [*command, *arguments],
            check=True,
            capture_output=True,
            text=True,
            timeout=200,
            env={**environment, "XDG_CACHE_HOME": str(tmp_path)},
        )
        return done.stdout

    listed = run("list")
    assert sum(name in listed for name in NAMES) == 4
    planned = run("prune", "--older-than", "60", "--plan")
    assert [name in planned for name in NAMES] == [False, False, True, True]
    assert len(list(folder.iterdir())) == 9
    assert run("prune", "--older-than", "60") == planned
    assert {path.name for path in folder.iterdir() if path.suffix == ".gz"} == {
        "data.tar.gz",
        *NAMES[:2],
    }
