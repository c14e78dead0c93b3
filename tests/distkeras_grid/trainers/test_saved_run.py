"""A saved run is whole: model, history and run.json of one training, or nothing."""

from __future__ import annotations

import errno
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

from distkeras_grid.checkpoints import Driver
from distkeras_grid.errors import (
    ConfigurationError,
    DataError,
    OutputExistsError,
    StorageError,
)
from distkeras_grid.history import History
from distkeras_grid.spark.storage import Storage
from distkeras_grid.trainers import saved_run
from distkeras_grid.trainers.saved_run import is_of_former_attempt, keep_copy, load, save

pytestmark = [pytest.mark.spark, pytest.mark.tensorflow]


def model_of(value):
    import keras

    net = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    net.set_weights([np.array([[value]]), np.array([0.0])])
    return net


def run_of(value):
    return model_of(value), History(params={"seed": value}), {"seed": value}


def value_of(uri):
    """Return the value that model, history and run.json of a folder agree on."""
    saved = load(uri)
    value = saved.run["seed"]
    assert saved.history.params == {"seed": value}
    assert saved.model.get_weights()[0] == value
    return value


@pytest.fixture
def folder(spark, tmp_path):
    return tmp_path / "runs" / "first"


def left(folder):
    return sorted(path.name for path in folder.parent.iterdir())


def test_a_run_is_replaced_as_a_whole_and_on_demand_only(folder):
    save(str(folder), *run_of(1))
    assert value_of(str(folder)) == 1
    with pytest.raises(OutputExistsError, match="holds a saved run already"):
        save(str(folder), *run_of(2))
    assert value_of(str(folder)) == 1
    save(str(folder), *run_of(2), overwrite=True)
    assert value_of(str(folder)) == 2
    assert left(folder) == ["first"]


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def test_a_local_copy_can_be_loaded(spark, temporary):
    kept = keep_copy(*run_of(3))
    assert list(temporary.iterdir()) == [kept]
    assert value_of(kept.as_uri()) == 3
    assert json.loads((kept / "run.json").read_text()) == {"seed": 3}


def test_a_local_copy_that_fails_leaves_nothing(temporary, monkeypatch):
    opened = Path.open

    def full(self, *arguments, **options):
        if self.name == "history.jsonl":
            raise OSError(errno.ENOSPC, "No space left on device")
        return opened(self, *arguments, **options)

    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(StorageError, match=f"Cannot write to {temporary}: .*No space left"):
        keep_copy(*run_of(3))
    assert list(temporary.iterdir()) == []


def test_a_model_that_cannot_be_packed_names_the_temporary_files(spark, folder, monkeypatch):
    def full(_model):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(saved_run, "model_to_bytes", full)
    with pytest.raises(StorageError, match=r"Cannot pack the model in .*No space left.*TMPDIR"):
        save(str(folder), *run_of(1))


def test_a_saved_run_names_the_custom_objects_that_its_model_needs(spark, folder):
    import keras

    class Own(keras.layers.Layer):
        def call(self, x):
            return x

    net = keras.Sequential([keras.Input((1,)), Own()])
    save(str(folder), net, History(), {"custom_objects": ["Own"]})
    with pytest.raises(ConfigurationError, match="'Own': Own"):
        load(str(folder))
    assert isinstance(load(str(folder), {"Own": Own}).model.layers[-1], Own)


FIRST, SECOND = Driver("application_17_0001"), Driver("application_17_0001", attempt=2)


@pytest.mark.parametrize(
    ("told", "driver", "known"),
    [
        ({"driver": {"application": FIRST.application, "attempt": 1}}, SECOND, True),
        ({"driver": {"application": FIRST.application, "attempt": 1}}, FIRST, False),
        ({"driver": {"application": FIRST.application, "attempt": 2}}, FIRST, False),
        ({"driver": {"application": "another", "attempt": 1}}, SECOND, False),
        ({"driver": {"application": FIRST.application, "attempt": 0}}, SECOND, False),
        ({"driver": "application"}, SECOND, False),
        ({}, SECOND, False),
    ],
)
def test_the_run_of_an_earlier_attempt_is_known(spark, folder, told, driver, known):
    storage, uri = Storage(spark), str(folder)
    assert not is_of_former_attempt(storage, uri, driver)
    save(uri, model_of(1), History(), told)
    assert is_of_former_attempt(storage, uri, driver) == known
    (folder / "model.keras").unlink()
    assert not is_of_former_attempt(storage, uri, driver)


MILLION = """
import gc, pathlib, re, sys
import keras
from distkeras_grid.history import History
from distkeras_grid.records import EpochEnded, WindowRecord
from distkeras_grid.spark.session import build_session
from distkeras_grid.trainers.saved_run import load, save

def memory(name):
    status = pathlib.Path("/proc/self/status").read_text()
    return int(re.search(name + ":[^0-9]+([0-9]+)", status)[1])

def history():
    made = History()
    for number in range(10**6):
        made.add(WindowRecord(
            number % 200, 1000 + number % 200, 1 + number // 10**5, number % 5000, 16, 512,
            0.5 + number / 1e7, {"accuracy": 0.25, "auc": 0.5}, 1.7e9 + number, 0.25, number % 7,
            3_350_440, 3_350_440, 1.7e9 + number, number + 1))
        if number % 10**5 == 10**5 - 1:
            ended = EpochEnded(1 + number // 10**5, number + 1, 512 * (number + 1), 1.7e9)
            made.add_epoch(ended)
    return made

def cycle(uri, made):
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    save(uri, model, made, {"trainer": "ADAG"})
    samples = made.samples
    del made
    gc.collect()
    found = load(uri).history
    assert (len(found.records), found.samples) == (samples // 512, samples)

session = build_session("a million windows", master="local[1]")
# Once with a few, so that what Keras and Spark import and allocate is there.
cycle(sys.argv[1] + "/few", History())
gc.collect()
# From here on the peak is that of the million.
pathlib.Path("/proc/self/clear_refs").write_text("5")
before = memory("VmRSS")
cycle(sys.argv[1] + "/million", history())
print("grown by", (memory("VmHWM") - before) // 1024)
session.stop()
"""


@pytest.mark.full
def test_a_million_windows_are_saved_and_loaded_with_less_than_200_mb(tmp_path):
    """Beyond what Keras and Spark take: the history itself, and what passes through memory."""
    done = subprocess.run(
        [sys.executable, "-c", MILLION, str(tmp_path)],
        check=False,
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split("grown by")[1]) < 200, done.stdout
    assert not list(tmp_path.glob("_*"))


@pytest.mark.parametrize("content", ["", "[1]", "{", "[" * 5000, '{"custom_objects": 3}'])
def test_a_damaged_description_is_named(folder, content):
    save(str(folder), *run_of(1))
    (folder / "run.json").write_text(content)
    with pytest.raises(DataError, match=r"run\.json"):
        load(str(folder))
