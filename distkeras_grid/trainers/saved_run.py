"""A trained model together with its history and the description of its run."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distkeras_grid.engine.keras_model import model_from_bytes, model_to_bytes
from distkeras_grid.engine.own_objects import remember_objects
from distkeras_grid.errors import ConfigurationError, StorageError
from distkeras_grid.history import History
from distkeras_grid.spark.outputs import Output, OutputKind
from distkeras_grid.spark.session import active_session
from distkeras_grid.spark.storage import Storage
from distkeras_grid.spec import RunSpec

if TYPE_CHECKING:
    import keras

MODEL, HISTORY, RUN = "model.keras", "history.jsonl", "run.json"
SAVED_RUN = OutputKind("saved run", marker=RUN, others=(MODEL, HISTORY))


@dataclass(frozen=True)
class SavedRun:
    """What `load` returns.

    Parameters
    ----------
    model : keras.Model
        The trained model.
    history : History
        Its history.
    run : dict
        Trainer, arguments, versions and figures of the run.
    """

    model: keras.Model
    history: History = field(repr=False)
    run: dict[str, Any] = field(repr=False)

    @property
    def spec(self) -> RunSpec:
        """The run as a value, as ``trainer.spec`` was.

        Raises
        ------
        ConfigurationError
            If ``run.json`` does not have it.
        """
        return RunSpec.from_json(self.run.get("spec"))


def save(
    uri: str,
    model: keras.Model,
    history: History,
    run: Mapping[str, Any],
    *,
    overwrite: bool = False,
) -> None:
    """Write a run to a folder on any Hadoop path. The folder appears complete or not at all.

    Parameters
    ----------
    uri : str
        The folder. It must be missing or empty.
    model : keras.Model
        The trained model.
    history : History
        History of its training.
    run : mapping of str to object
        Description of the run, as JSON values.
    overwrite : bool, default False
        Whether to replace a saved run that exists there, when the new one is complete.

    Raises
    ------
    OutputExistsError
        If the folder has a run and `overwrite` is not set, or has anything else.
    NoSpaceError
        If a disk or a quota is full.
    """
    storage = Storage(active_session())
    output = Output(storage, uri, SAVED_RUN, overwrite=overwrite)
    output.check()
    with output.writing() as folder:
        for name, content in _files(model, history, run).items():
            storage.write_bytes(f"{folder}/{name}", content)


def keep_copy(model: keras.Model, history: History, run: Mapping[str, Any]) -> Path:
    """Write a run to a new folder below this machine's directory of temporary files.

    Returns
    -------
    pathlib.Path
        The folder; `load` reads it.

    Raises
    ------
    StorageError
        If it cannot be written. Nothing is left behind.
    """
    files = _files(model, history, run)
    try:
        folder = Path(tempfile.mkdtemp(prefix="distkeras-grid-run-"))
        try:
            for name, content in files.items():
                (folder / name).write_bytes(content)
        except OSError:
            shutil.rmtree(folder)
            raise
    except OSError as error:
        raise StorageError(f"Cannot write to {tempfile.gettempdir()}: {error}") from error
    return folder


def load(uri: str, custom_objects: Mapping[str, Any] | None = None) -> SavedRun:
    """Read what ``trainer.save(uri)`` wrote.

    Parameters
    ----------
    uri : str
        Folder on any Hadoop path.
    custom_objects : mapping of str to object, optional
        Your own layers and losses that the model uses.

    Returns
    -------
    SavedRun
        Model, history and run.

    Raises
    ------
    PathNotFoundError
        If a file of the run is missing.
    ConfigurationError
        If the model needs custom objects that are not given. The message names them.
    """
    storage = Storage(active_session())
    run = json.loads(storage.read_text(f"{uri}/{RUN}"))
    history = History.from_jsonl_text(storage.read_text(f"{uri}/{HISTORY}"))
    archive = storage.read_bytes(f"{uri}/{MODEL}")
    missing = sorted(set(run.get("custom_objects", ())) - set(custom_objects or {}))
    try:
        model = model_from_bytes(archive, custom_objects)
    except ConfigurationError as error:
        if not missing:
            raise
        listed = ", ".join(f"{name!r}: {name}" for name in missing)
        raise ConfigurationError(
            f"The model of {uri!r} was trained with custom objects, whose code is not saved with "
            f"it. Received: custom_objects={sorted(custom_objects or {})}. Call load(uri, "
            f"custom_objects={{{listed}}})."
        ) from error
    remember_objects(model, custom_objects)
    return SavedRun(model, history, run)


def _files(model: keras.Model, history: History, run: Mapping[str, Any]) -> dict[str, bytes]:
    """Return the content of each file; the marker comes last."""
    try:
        archive = model_to_bytes(model)
    except OSError as error:
        raise StorageError(
            f"Cannot pack the model in {tempfile.gettempdir()}: {error}. Free some space there, or "
            "set TMPDIR to another directory."
        ) from error
    return {
        MODEL: archive,
        HISTORY: history.to_jsonl_text().encode(),
        RUN: (json.dumps(run, indent=2, sort_keys=True) + "\n").encode(),
    }
