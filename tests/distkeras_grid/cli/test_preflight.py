"""What can be known before is refused before Spark starts, on the real command line."""

from __future__ import annotations

import contextlib
import json
import resource
import subprocess
import sys
from types import SimpleNamespace

import pytest
from pyspark import SparkContext

from distkeras_grid.cli import preflight
from distkeras_grid.cli.verbs import VERBS
from distkeras_grid.errors import (
    ConfigurationError,
    NotEnoughSlotsError,
    OutputExistsError,
    PathNotFoundError,
    SchemaError,
    StorageError,
)
from distkeras_grid.spark.atomic_output import OutputKind
from distkeras_grid.submission.command import Submission
from tests.local_files import LocalFiles

# Of the processor, for other tests may run beside; what would start late takes ten times that.
SECONDS = 2.0
KIND = OutputKind("saved run", marker="run.json", others=("model.keras",))

WITHOUT_FRAMEWORKS = """
import sys
from distkeras_grid.cli.main import main
code = main(sys.argv[1:])
late = [name for name in ("tensorflow", "keras") if name in sys.modules]
from pyspark import SparkContext
assert not late and SparkContext._gateway is None, late
sys.exit(code)
"""


def submitted(files):
    return preflight.SubmittedDriver(Submission("a.py", [], "", master="spark://host:1"), files)


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with data, models and outputs of all kinds, in which the command line runs."""
    monkeypatch.chdir(tmp_path)
    for name in ("HADOOP_CONF_DIR", "YARN_CONF_DIR", "SPARK_CONF_DIR", "PYSPARK_GATEWAY_PORT"):
        monkeypatch.delenv(name, raising=False)
    for name in ("data", "run", "predictions", "thesis", "images"):
        (tmp_path / name).mkdir()
    (tmp_path / "run" / "run.json").write_text("{}")
    (tmp_path / "predictions" / "_predictions.json").write_text("{}")
    for name in ("exported", "mixed"):
        (tmp_path / name / "a").mkdir(parents=True)
        (tmp_path / name / "_export.json").write_text("{}")
    (tmp_path / "thesis" / "chapter").write_text("")
    (tmp_path / "figures.json").write_text("{}")
    (tmp_path / "m.keras").write_text("")
    return tmp_path


TRAIN = ("train", "--data", "data", "--output", "new")
FILE = ("--model", "m.keras")
MANY = ("--workers", "3", "--master", "local[2]")
EXPORT = ("export", "--data", "data", "--format", "png")
PREDICT = ("predict", "--data", "data", "--model", "m.keras")
FOLD = ("--fold", "fold_0")


@pytest.mark.parametrize(
    ("arguments", "code", "error"),
    [
        ((*TRAIN, *FILE, "--set", "comunication_window=3"), 2, "UnknownArgumentError"),
        (("retrain", *TRAIN[1:], *FILE, "--set", "lerning_rate=1"), 2, "UnknownArgumentError"),
        ((*TRAIN, *FILE, *MANY), 5, "NotEnoughSlotsError"),
        ((*PREDICT, "--output", "new", *FOLD), 2, "ConfigurationError"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
@pytest.mark.full
def test_it_takes_less_than_2_s_and_no_spark(here, arguments, code, error):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    ended = subprocess.run(
        [sys.executable, "-c", WITHOUT_FRAMEWORKS, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert ended.returncode == code, ended.stderr
    assert ended.stderr.startswith(error)
    assert ended.stderr.count("\n") == 1
    used = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    assert used < SECONDS


FLAGS = [
    ((*TRAIN, *FILE, *FOLD), ConfigurationError),
    (("retrain", *TRAIN[1:], *FILE, *FOLD), ConfigurationError),
    ((*PREDICT, "--output", "new", *FOLD), ConfigurationError),
    ((*EXPORT, "--output", "new", *FOLD), ConfigurationError),
    ((*TRAIN, *FILE, "--set", "batch_size=0"), ConfigurationError),
    (("retrain", *TRAIN[1:], *FILE, "--workers", "3"), NotEnoughSlotsError),
    (("doctor", "--servers", "0"), ConfigurationError),
]
PATHS = [
    (("compact", "--data", "lost"), PathNotFoundError),
    (("train", "--data", "lost", "--output", "new", *FILE), PathNotFoundError),
    ((*TRAIN[:3], "--output", "run", *FILE), OutputExistsError),
    ((*TRAIN[:3], "--output", "thesis", *FILE, "--overwrite"), OutputExistsError),
    ((*TRAIN, "--model", "lost.keras"), PathNotFoundError),
    ((*PREDICT, "--output", "predictions"), OutputExistsError),
    (("evaluate", "--data", "data", "--output", "figures.json"), OutputExistsError),
    (("tile", "--input", "lost", "--output", "new"), PathNotFoundError),
    (("tile", "--input", "images", "--output", "thesis"), OutputExistsError),
    ((*EXPORT, "--output", "thesis"), OutputExistsError),
    ((*EXPORT, "--output", "mixed", "--split", "b", "--overwrite"), OutputExistsError),
]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [*FLAGS, *PATHS],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_verb_refuses_wrong_flags_and_submit_wrong_paths_too(here, monkeypatch, arguments, error):
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    verb, *flags = arguments
    module = VERBS[verb].load()
    places = [submitted(LocalFiles()), *([None] if (arguments, error) in FLAGS else [])]
    for place in places:
        with pytest.raises(error):
            module.check_early(module.build_parser().parse_args(flags), place)


def test_an_output_that_may_be_written_passes(here):
    place = submitted(LocalFiles())
    (here / "empty").mkdir()
    for uri in ("new", "empty"):
        preflight.check_output(uri, KIND, overwrite=False, place=place)
    preflight.check_output("run", KIND, overwrite=True, place=place)
    with pytest.raises(ConfigurationError):
        preflight.check_output("data", KIND, "data", overwrite=True, place=place)


@pytest.mark.parametrize(
    ("trainer", "arguments", "tasks"),
    [
        ("ADAG", {"num_workers": 3}, 3),
        ("ADAG", {}, 1),
        ("SingleTrainer", {}, 1),
        # One worker trains, and each of the tasks that share its model needs a slot.
        ("ConvolutionSplit", {"num_workers": 3}, 3),
        ("ConvolutionSplit", {}, 0),
        ("PlacedLayers", {"cuts": ["one", "two"]}, 3),
    ],
)
def test_a_local_master_has_a_slot_for_each_task(here, monkeypatch, trainer, arguments, tasks):
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    for slots in range(1, 4):
        context = pytest.raises(NotEnoughSlotsError) if tasks > slots else contextlib.nullcontext()
        with context:
            preflight.check_trainer(trainer, arguments, f"local[{slots},4]", None)
    preflight.check_trainer(trainer, arguments, "yarn", None)
    # The submission has a master of its own.
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    preflight.check_trainer(trainer, arguments, "local", None)


def test_without_a_master_the_default_one_or_a_running_session_counts(here, monkeypatch):
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    assert preflight.local_slots(None) == 2
    running = SimpleNamespace(master="local[3]", _jsc=object())
    monkeypatch.setattr(SparkContext, "_active_spark_context", running)
    assert preflight.local_slots("local") == preflight.local_slots("local[8]") == 3


class Unreachable(LocalFiles):
    """A file system whose jar only the job has."""

    def resolve(self, _):
        raise StorageError('No FileSystem for scheme "s3a".')


def test_what_the_client_cannot_reach_is_named_and_left_to_the_job(capsys):
    preflight.check_input("s3a://bucket/data", "--data", submitted(Unreachable()))
    (line,) = capsys.readouterr().err.splitlines()
    assert "by the job itself: s3a://bucket/data (No FileSystem" in line


def test_a_split_that_the_data_do_not_have_is_refused(here, monkeypatch):
    sources = [{"source": "a/1", "status": "tiled", "label": "a", "split": "train"}]
    manifest = here / "data" / "_versions" / "0.json"
    manifest.parent.mkdir()
    manifest.write_text(json.dumps({"sources": sources, "classes": ["a"]}))
    for verb, more in (
        ("train", ["--output", "new", *FILE]),
        ("predict", ["--output", "new", *FILE]),
    ):
        module = VERBS[verb].load()
        for split, passes in (("train", True), ("trian", False)):
            flags = module.build_parser().parse_args(["--data", "data", "--split", split, *more])
            with contextlib.nullcontext() if passes else pytest.raises(SchemaError, match="train"):
                module.check_early(flags, submitted(LocalFiles()))
