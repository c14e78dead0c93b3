"""The page and the examples of scheduled jobs, and two nights and weeks by the same commands."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from data_prep.cli import compact, tile
from distkeras_grid.cli import common_options, retrain, submit
from distkeras_grid.cli.common_options import run
from distkeras_grid.cli.exit_codes import HELP

VERBS = {"tile": tile, "retrain": retrain, "compact": compact}
LOG = ("--log-format", "json")
SERVICES = ("grid-tiles.service", "grid-training.service", "grid-compaction.service")


@pytest.fixture(scope="module")
def schedule(project):
    return project / "jobs" / "schedule"


def commands_in(text):
    """The command lines of an example, as words after ``distkeras-grid submit``."""
    # Strings of Python that stand in a row, and lines that go on.
    text = re.sub(r'"\s*\n\s*"|\\\n', "", text)
    found = re.findall(r'distkeras-grid submit ([^"\n]*--[^"\n]*)', text)
    return [shlex.split(line.partition(" >>")[0]) for line in found]


def parsed(words):
    """The flags of submit, and the job's verb and flags."""
    parser = submit.build_parser()
    common_options.add_flags(parser)
    flags = parser.parse_args(words)
    submit.resolve_job(flags.job, flags.arguments)  # refuses what the job does not know
    _, rest = common_options.parse(flags.job, flags.arguments)
    return flags, flags.job, VERBS[flags.job].build_parser().parse_args(rest)


@pytest.mark.parametrize("name", ["crontab", *SERVICES, "airflow_dag.py", "README.md"])
def test_each_command_of_the_examples_is_one(schedule, name):
    found = [parsed(words) for words in commands_in((schedule / name).read_text())]
    assert found
    for _, verb, flags in found:
        assert (flags.data if verb == "compact" else flags.output).startswith("hdfs:///")
    # Airflow's pool keeps its tasks apart.
    locks = len(
        re.findall(r"flock -F -n -E 75 \S+ \S*distkeras-grid", (schedule / name).read_text())
    )
    assert locks == (0 if name == "airflow_dag.py" else len(found))
    verbs = {verb for _, verb, _ in found}
    assert verbs == set(VERBS) or name.endswith(".service")


def test_all_examples_say_the_same(schedule):
    """So that one can change from cron to a timer without changing what is done."""

    def told(name):
        return {tuple(words) for words in commands_in((schedule / name).read_text())}

    services = set().union(*map(told, SERVICES))
    assert told("crontab") == services == told("airflow_dag.py")
    # The page is for people, and leaves the form of the lines to them.
    by_hand = {tuple(word for word in words if word not in LOG) for words in services}
    assert told("README.md") == by_hand


def test_crontab_lines_have_five_fields_and_no_percent(schedule):
    lines = [
        line for line in (schedule / "crontab").read_text().splitlines() if "distkeras-grid" in line
    ]
    for line in lines:
        assert re.match(r"[\d*]+ [\d*]+ \* \* [\d*]  +cd ", line.replace("   ", "  "))
        assert "%" not in line  # cron makes a new line of it
    assert len(lines) == len(VERBS)


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd is not installed")
def test_systemd_takes_the_units(schedule, tmp_path):
    for path in schedule.glob("grid-*"):
        # The command must exist where the units are verified.
        text = path.read_text().replace("/opt/grid/.venv/bin/distkeras-grid", "/bin/true")
        (tmp_path / path.name).write_text(text)
    names = sorted(str(path) for path in tmp_path.iterdir())
    assert len(names) == 2 * len(VERBS)
    ended = subprocess.run(
        ["systemd-analyze", "verify", *names], check=False, capture_output=True, text=True
    )
    ours = [line for line in ended.stderr.splitlines() if "grid-" in line]
    assert (ended.returncode, ours) == (0, [])


def test_the_page_has_the_table_of_exit_codes(schedule):
    rows = re.findall(r"^\| (\d+) \| (.*) \|$", (schedule / "README.md").read_text(), re.MULTILINE)
    assert rows == [(str(int(code)), text) for code, text in HELP.items()]


# -- two nights and two weeks --------------------------------------------------------------------


@pytest.fixture
def work(tmp_path, samples):
    for name in ("class0", "class1"):
        (tmp_path / "images" / name).mkdir(parents=True)
        for path in sorted((samples / name).glob("*.png"))[:4]:
            shutil.copy(path, tmp_path / "images" / name)
    return tmp_path


@pytest.fixture
def job(work, capsys):
    """Run a job as the examples do; return its exit code and its last line."""

    def go(verb, *flags):
        flags = [str(flag) for flag in flags]
        code = run(verb, VERBS[verb].main, [*flags, *LOG])
        lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert lines[-1]["event"] == "result"
        assert lines[-1]["exit_code"] == code
        return code, lines[-1]

    return go


@pytest.mark.full
@pytest.mark.spark
@pytest.mark.tensorflow
def test_two_nights_and_two_weeks(spark, job, work, samples, monkeypatch):
    monkeypatch.chdir(Path(__file__).parent)  # small_net lies here
    night = (
        *("tile", "--update", "--input", work / "images", "--output", work / "tiles"),
        *("--tile", 64, "--overlap", 0, "--angles", "0", "--split", "0.5:0.25:0.25"),
    )
    week = (
        *("retrain", "--data", work / "tiles"),
        *("--split", "train", "--validation-split", "validation"),
        *("--features", "image", "--model", "small_net:build", "--workers", 1, "--batch-size", 8),
        *("--set", "progress=False", "--output", work / "runs", "--keep", 1, "--seed", 1),
    )
    code, told = job(*night)
    assert (code, told["new"], told["left_out"]) == (0, 8, {})
    all_tiles = told["tiles"]
    code, told = job(*week)
    assert (code, told["new_images"], told["update"]) == (0, 4, 0)
    assert 0 < told["samples"] < all_tiles
    first = told["run"]

    assert job(*week)[1]["new_images"] == 0
    assert [path.name for path in (work / "runs").glob("2*")] == [first]

    for name in ("class0", "class1"):
        more = sorted((samples / name).glob("*.png"))[4:6]
        for path in more:
            shutil.copy(path, work / "images" / name)
    (work / "images" / "class0" / "cut.png").write_bytes(b"no image")
    code, told = job(*night)
    assert (code, told["exit"], told["new"]) == (7, "PARTIAL", 4)
    assert list(told["left_out"]) == ["class0/cut.png"]
    assert told["tiles_cut"] == told["tiles"] - all_tiles

    code, told = job(*week)
    train_tiles = spark.read.parquet(str(work / "tiles")).where(
        "shard like '1-%' and split = 'train'"
    )
    new_images = train_tiles.select("source").distinct().count()
    assert (code, told["new_images"], told["update"]) == (0, new_images, 1)
    assert 0 < new_images <= 4
    assert told["samples"] == train_tiles.count()
    # The first run went when the second was there; and its model can be read.
    second = told["run"]
    assert second > first
    assert [path.name for path in (work / "runs").glob("2*")] == [second]
    assert Path(told["model"]).exists()
    ran = json.loads((work / "runs" / second / "run.json").read_text())
    manifest = json.loads(max((work / "tiles").glob("_versions/*.json")).read_text())
    version = {"number": manifest["last_update"], "hash": manifest["hash"]}
    assert ran["data_version"] == version
    assert ran["samples"] == told["samples"]

    # A compaction makes no image new.
    code, told = job("compact", "--data", work / "tiles")
    assert (code, told["tiles"]) == (0, manifest["tiles"])
    assert told["shards"] == 1
    assert job(*week)[1]["new_images"] == 0
