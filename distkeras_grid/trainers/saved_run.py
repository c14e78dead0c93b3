"""A trained model together with its history and the description of its run."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from distkeras_grid.checkpoints import Driver
from distkeras_grid.engine.keras_model import LAMBDAS, model_from_bytes, model_to_bytes
from distkeras_grid.errors import (
    UNREADABLE,
    ConfigurationError,
    DataError,
    PathNotFoundError,
    StorageError,
)
from distkeras_grid.history import History
from distkeras_grid.spark.atomic_output import Output, OutputKind, interrupted_replacement
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

    `uri`: the folder. It must be missing or empty.
    """
    storage = Storage(active_session())
    output = Output(storage, uri, SAVED_RUN, overwrite=overwrite)
    output.check()
    write(storage, output, _archive(model), history, run)


def write(
    storage: Storage, output: Output, archive: bytes, history: History, run: Mapping[str, Any]
) -> None:
    """Write the files of a run to a hidden folder, the marker last, and give it the output's name.

    Whoever is killed meanwhile leaves under this name the former run or the new one, whole; or, in
    the moment between the two renames of a replacement, nothing, and both whole beside it. Then
    the next `Output.check` gives the new one its name, and `load` says where both are.
    """
    with output.writing() as folder:
        storage.write_bytes(f"{folder}/{MODEL}", archive)
        storage.write_lines(f"{folder}/{HISTORY}", history.lines())
        storage.write_text(f"{folder}/{RUN}", _description(run))


def keep_copy(model: keras.Model, history: History, run: Mapping[str, Any]) -> Path:
    """Write a run to a new folder below this machine's directory of temporary files."""
    archive, description = _archive(model), _description(run)
    try:
        folder = Path(tempfile.mkdtemp(prefix="distkeras-grid-run-"))
        try:
            (folder / MODEL).write_bytes(archive)
            with (folder / HISTORY).open("w", encoding="utf-8") as file:
                file.writelines(history.lines())
            (folder / RUN).write_text(description, encoding="utf-8")
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
        If a file of the run is missing. If a driver was killed while it replaced the run, it says
        where the new run and the former one are.
    DataError
        If ``run.json`` or the history is damaged.
    ConfigurationError
        If the model needs custom objects that are not given. The message names them.
    """
    storage = Storage(active_session())
    check_present(storage, uri)
    run = _read_description(storage, f"{uri}/{RUN}")
    history = History.from_lines(storage.read_lines(f"{uri}/{HISTORY}"))
    archive = storage.read_bytes(f"{uri}/{MODEL}")
    missing = sorted(set(run.get("custom_objects", ())) - {LAMBDAS} - set(custom_objects or {}))
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
    return SavedRun(model, history, run)


def check_present(storage: Storage, uri: str) -> None:
    """Say where a run is whose replacement was interrupted; nothing is changed."""
    if left := interrupted_replacement(storage, uri, SAVED_RUN):
        raise PathNotFoundError(
            f"{uri} does not exist: a driver was killed while it replaced this run. The new run is "
            f"complete in {left.new}, the former one in {left.former}. Load one of them, or "
            f"rename one to {uri}. If you save another run there, the new one gets its name first."
        )


def is_of_former_attempt(storage: Storage, uri: str, driver: Driver) -> bool:
    """Whether a folder is a whole run that an earlier attempt of a driver's application has saved.

    That attempt died after the folder had its name, and before YARN knew that it had succeeded.

    `uri`: the folder; it may be missing, or anything else.
    """
    names = set(storage.list_names(uri)) if storage.exists(uri) else set()
    if not names >= {MODEL, HISTORY, RUN}:
        return False
    try:
        run = msgspec.json.decode(storage.read_bytes(f"{uri}/{RUN}"), type=_RunOrigin)
    except UNREADABLE:
        # Whatever it is, this application has not saved it.
        return False
    return run.driver is not None and run.driver.precedes(driver)


class _RunOrigin(msgspec.Struct):
    driver: Driver | None = None


def _read_description(storage: Storage, uri: str) -> dict[str, Any]:
    """Return the content of ``run.json``; the module itself needs ``custom_objects`` of it."""
    try:
        run: dict[str, Any] = msgspec.convert(json.loads(storage.read_text(uri)), dict[str, Any])
        msgspec.convert(run.get("custom_objects", []), list[str])
    except UNREADABLE as error:
        raise DataError(
            f"{uri} does not describe a saved run: {error}. Take it from a copy, or train again."
        ) from error
    return run


def _archive(model: keras.Model) -> bytes:
    try:
        return model_to_bytes(model)
    except OSError as error:
        raise StorageError(
            f"Cannot pack the model in {tempfile.gettempdir()}: {error}. Free some space there, or "
            "set TMPDIR to another directory."
        ) from error


def _description(run: Mapping[str, Any]) -> str:
    return json.dumps(run, indent=2, sort_keys=True) + "\n"
