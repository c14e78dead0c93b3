"""What can be known before is refused before Spark starts, on the real command line."""

from __future__ import annotations

import contextlib
import json
import resource
import subprocess
import sys
from dataclasses import replace
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
from distkeras_grid.spark.storage import Storage
from distkeras_grid.submission.command import Submission

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
    (tmp_path / "nets.py").write_text("def build(shape):\n    return shape\n")
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    sys.modules.pop("nets", None)


TRAIN = ("train", "--data", "data", "--output", "new")
FILE = ("--model", "m.keras")
MANY = ("--workers", "3", "--master", "local[2]")
EXPORT = ("export", "--data", "data", "--format", "png")
PREDICT = ("predict", "--data", "data", "--model", "m.keras")


@pytest.mark.parametrize(
    ("arguments", "code", "error"),
    [
        ((*TRAIN, *FILE, "--set", "comunication_window=3"), 2, "UnknownArgumentError"),
        ((*TRAIN[:3], "--output", "run", *FILE), 4, "OutputExistsError"),
        (("retrain", *TRAIN[1:], *FILE, "--set", "lerning_rate=1"), 2, "UnknownArgumentError"),
        ((*TRAIN, *FILE, *MANY), 5, "NotEnoughSlotsError"),
        (("evaluate", "--data", "data", "--output", "figures.json"), 4, "OutputExistsError"),
        (("tile", "--input", "images", "--output", "thesis"), 4, "OutputExistsError"),
        ((*EXPORT, "--output", "exported"), 4, "OutputExistsError"),
        ((*EXPORT, "--output", "mixed", "--split", "b", "--overwrite"), 4, "OutputExistsError"),
        (("ingest", "--size", "8", "--input", "data", "--output", "thesis"), 4, "OutputExists"),
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


FOLD = ("--fold", "fold_0")


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("compact", "--data", "lost"), PathNotFoundError),
        ((*TRAIN, *FILE, *FOLD), ConfigurationError),
        (("retrain", *TRAIN[1:], *FILE, *FOLD), ConfigurationError),
        ((*PREDICT, "--output", "new", *FOLD), ConfigurationError),
        (("evaluate", "--data", "data", *FOLD), ConfigurationError),
        ((*EXPORT, "--output", "new", *FOLD), ConfigurationError),
        ((*TRAIN, *FILE, "--set", "batch_size=0"), ConfigurationError),
        (("train", "--data", "lost", "--output", "new", *FILE), PathNotFoundError),
        ((*TRAIN[:3], "--output", "thesis", *FILE, "--overwrite"), OutputExistsError),
        (("tile", "--input", "lost", "--output", "new"), PathNotFoundError),
        ((*EXPORT, "--output", "thesis"), OutputExistsError),
        ((*TRAIN, "--model", "lost.keras"), PathNotFoundError),
        (("retrain", *TRAIN[1:], *FILE, "--workers", "3"), NotEnoughSlotsError),
        ((*PREDICT, "--output", "predictions"), OutputExistsError),
        (("tile", "--input", "images", "--output", "thesis"), OutputExistsError),
        ((*EXPORT, "--output", "exported"), OutputExistsError),
        (("doctor", "--servers", "0"), ConfigurationError),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_verb_refuses_the_same_for_its_own_driver_and_for_one_that_is_submitted(
    here, monkeypatch, arguments, error
):
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    verb, *flags = arguments
    module = VERBS[verb].load()
    standalone = Submission("job.py", [], "", master="spark://host:7077")
    submitted = preflight.SubmittedDriver(standalone, preflight.LocalFiles())
    for place in (preflight.HERE, submitted):
        with pytest.raises(error):
            module.check_early(module.build_parser().parse_args(flags), place)


def test_an_update_that_disagrees_with_what_is_there(here):
    from data_prep import TileSpec, TilingSettings
    from data_prep.cli.tile import check_before_spark

    spec = TileSpec(64)
    made = TilingSettings("images", "tiles", spec, channels="3", update=True)
    (here / "tiles" / "_versions").mkdir(parents=True)
    content = {"image": {}, "sources": [], "spec": spec.to_json(), "settings": made.to_json()}
    content |= {"last_shard": -1, "last_update": 0}
    metadata = {
        "version": 1,
        "shape": [64, 64, 3],
        "dtype": "uint8",
        "encoding": "raw",
        "scale": 1.0,
    }
    content["image"] = {"distkeras_grid": {**metadata, "offset": 0.0, "classes": ["a"]}}
    (here / "tiles" / "_versions" / "0.json").write_text(json.dumps(content))
    check_before_spark(made)
    with pytest.raises(ConfigurationError):
        check_before_spark(replace(made, channels="1"))


def test_an_output_that_may_be_written_passes(here):
    (here / "empty").mkdir()
    for uri in ("new", "empty", "file:" + str(here / "new"), "file://" + str(here / "new")):
        preflight.check_output(uri, KIND, overwrite=False)
    preflight.check_output("run", KIND, overwrite=True)
    for uri in ("data", f"file:{here}"):
        with pytest.raises(ConfigurationError):
            preflight.check_output(uri, KIND, "data", overwrite=True)
    with pytest.raises(OutputExistsError):
        preflight.check_output(f"file://{here}/run", KIND, overwrite=False)


@pytest.mark.parametrize("name", preflight.CONFIGURATIONS)
def test_of_what_spark_alone_can_tell_nothing_is_said(here, monkeypatch, capsys, name):
    for uri in ("s3a://bucket/run", "hdfs://nowhere.invalid/run", "data/*.parquet"):
        preflight.check_input(uri, "--data")
        preflight.check_output(uri, KIND, overwrite=False)
    # It may mean a path of another file system.
    monkeypatch.setenv(name, "1")
    preflight.check_input("lost", "--data")
    with pytest.raises(PathNotFoundError):
        preflight.check_input("file:///lost", "--data")
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    preflight.check_input("file:///lost", "--data")
    assert capsys.readouterr().err == ""


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
            preflight.check_trainer(trainer, arguments, f"local[{slots},4]")
    preflight.check_trainer(trainer, arguments, "yarn")
    # The submission has a master of its own.
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    preflight.check_trainer(trainer, arguments, "local")


def test_without_a_master_the_default_one_or_a_running_session_counts(here, monkeypatch):
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    preflight.check_slots(None, 2)
    with pytest.raises(NotEnoughSlotsError):
        preflight.check_slots(None, 3)
    running = SimpleNamespace(master="local[3]", _jsc=object())
    monkeypatch.setattr(SparkContext, "_active_spark_context", running)
    preflight.check_slots("local", 3)
    with pytest.raises(NotEnoughSlotsError):
        preflight.check_slots("local[8]", 4)


def test_names_of_a_missing_folder_are_no_names(here):
    assert preflight.LocalFiles().list_names("run") == ["run.json"]
    assert preflight.LocalFiles().list_names("run/run.json") == ["run.json"]
    with pytest.raises(PathNotFoundError):
        preflight.LocalFiles().list_names("lost")


class Unreachable(preflight.LocalFiles):
    """A file system whose jar only the job has."""

    def resolve(self, _):
        raise StorageError('No FileSystem for scheme "s3a".')


def test_what_the_client_cannot_reach_is_named_and_left_to_the_job(capsys):
    submission = Submission("job.py", [], "", master="spark://host:7077")
    place = preflight.SubmittedDriver(submission, Unreachable())
    preflight.check_input("s3a://bucket/data", "--data", place)
    (line,) = capsys.readouterr().err.splitlines()
    assert "by the job itself: s3a://bucket/data (No FileSystem" in line


@pytest.mark.spark
def test_hadoops_own_files_are_looked_at(spark, here):
    submission = Submission("job.py", [], "", master="spark://host:7077")
    place = preflight.SubmittedDriver(submission, Storage(spark))
    preflight.check_input(f"{here}/data", "--data", place)
    with pytest.raises(PathNotFoundError):
        preflight.check_input(f"{here}/lost", "--data", place)
    with pytest.raises(OutputExistsError):
        preflight.check_output(f"{here}/run", KIND, overwrite=False, place=place)


def test_a_split_that_the_data_do_not_have_is_refused(here, monkeypatch):
    sources = [{"source": "a/1", "status": "tiled", "label": "a", "split": "train"}]
    manifest = here / "data" / "_versions" / "0.json"
    manifest.parent.mkdir()
    manifest.write_text(json.dumps({"sources": sources, "classes": ["a"]}))
    for verb, more in (
        ("train", ["--output", "new", *FILE]),
        ("predict", ["--output", "new", *FILE]),
        ("evaluate", FILE),
    ):
        module = VERBS[verb].load()
        for split, passes in (("train", True), ("trian", False)):
            flags = module.build_parser().parse_args(["--data", "data", "--split", split, *more])
            with contextlib.nullcontext() if passes else pytest.raises(SchemaError, match="train"):
                module.check_early(flags)
