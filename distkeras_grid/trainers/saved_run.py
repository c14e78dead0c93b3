"""A trained model kept together with its history and what it was trained with."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from distkeras_grid.engine.keras_model import model_from_bytes, model_to_bytes
from distkeras_grid.errors import OutputExistsError
from distkeras_grid.history import History
from distkeras_grid.spark.session import active_session
from distkeras_grid.spark.storage import Storage

if TYPE_CHECKING:
    import keras

MODEL, HISTORY, RUN = "model.keras", "history.jsonl", "run.json"


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


def save(
    uri: str,
    model: keras.Model,
    history: History,
    run: Mapping[str, Any],
    *,
    overwrite: bool = False,
) -> None:
    """Write a run to a folder on any Hadoop path; each file appears whole or not at all.

    Raises
    ------
    OutputExistsError
        If the folder holds a run already and `overwrite` is not set.
    """
    storage = Storage(active_session())
    if not overwrite and storage.exists(f"{uri}/{RUN}"):
        raise OutputExistsError(
            f"{uri!r} holds a run already; choose another folder, or pass overwrite=True."
        )
    storage.write_bytes(f"{uri}/{MODEL}", model_to_bytes(model), overwrite=overwrite)
    storage.write_text(f"{uri}/{HISTORY}", history.to_jsonl_text(), overwrite=overwrite)
    # Last: a folder with run.json is complete.
    text = json.dumps(run, indent=2, sort_keys=True) + "\n"
    storage.write_text(f"{uri}/{RUN}", text, overwrite=overwrite)


def load(uri: str, custom_objects: Mapping[str, Any] | None = None) -> SavedRun:
    """Read what ``trainer.save(uri)`` wrote.

    Parameters
    ----------
    uri : str
        Folder on any Hadoop path.
    custom_objects : mapping of str to object, optional
        Layers and losses of your own that the model uses.

    Returns
    -------
    SavedRun
        Model, history and run.

    Raises
    ------
    PathNotFoundError
        If a file of the run is not there.
    """
    storage = Storage(active_session())
    run = json.loads(storage.read_text(f"{uri}/{RUN}"))
    history = History.from_jsonl_text(storage.read_text(f"{uri}/{HISTORY}"))
    model = model_from_bytes(storage.read_bytes(f"{uri}/{MODEL}"), custom_objects)
    return SavedRun(model, history, run)
