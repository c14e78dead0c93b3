"""A saved run is whole: model, history and run.json of one training, or nothing."""

from __future__ import annotations

import errno
import json
import tempfile
from pathlib import Path

import numpy as np
import pytest

from distkeras_grid.engine.own_objects import objects_of
from distkeras_grid.errors import ConfigurationError, OutputExistsError, StorageError
from distkeras_grid.history import History
from distkeras_grid.spark.storage import Storage
from distkeras_grid.trainers import saved_run
from distkeras_grid.trainers.saved_run import keep_copy, load, save

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


@pytest.mark.parametrize("name", ["model.keras", "history.jsonl", "run.json"])
def test_a_save_that_fails_leaves_what_was_there(folder, name, monkeypatch):
    """At each of the three files: the first save leaves nothing, the next leaves the old run."""
    write = Storage.write_bytes

    def refuse(self, uri, *arguments, **options):
        if uri.endswith(name):
            raise StorageError("refused")
        write(self, uri, *arguments, **options)

    with monkeypatch.context() as patched:
        patched.setattr(Storage, "write_bytes", refuse)
        with pytest.raises(StorageError, match="refused"):
            save(str(folder), *run_of(1))
        assert left(folder) == []
    save(str(folder), *run_of(1))
    monkeypatch.setattr(Storage, "write_bytes", refuse)
    with pytest.raises(StorageError, match="refused"):
        save(str(folder), *run_of(2), overwrite=True)
    assert value_of(str(folder)) == 1
    assert left(folder) == ["first"]


def test_a_folder_that_is_no_run_is_not_touched(folder):
    folder.mkdir(parents=True)
    save(str(folder), *run_of(1))
    (folder / "notes.txt").write_text("precious")
    with pytest.raises(OutputExistsError, match=r"holds notes\.txt, too"):
        save(str(folder), *run_of(2), overwrite=True)
    (folder / "run.json").unlink()
    with pytest.raises(OutputExistsError, match=r"is not a saved run"):
        save(str(folder), *run_of(2), overwrite=True)
    assert (folder / "notes.txt").read_text() == "precious"


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
    write = Path.write_bytes

    def full(self, content):
        if self.name == "history.jsonl":
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(self, content)

    monkeypatch.setattr(Path, "write_bytes", full)
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
    loaded = load(str(folder), {"Own": Own}).model
    assert objects_of(loaded) == {"Own": Own}
