"""Columns that a run or a prediction has recorded, for verbs that are not told them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from distkeras_grid.cli.model_functions import not_a_model
from distkeras_grid.errors import UNREADABLE, ConfigurationError
from distkeras_grid.spec import RunSpec

if TYPE_CHECKING:
    from distkeras_grid.spark.storage import Storage

#: What ``predict`` writes beside its predictions; Spark skips names that begin with "_".
MANIFEST = "_predictions.json"


def model_file(model: str) -> str:
    """Return the model's file: itself, or the one in the folder of a run."""
    if model.lower().endswith((".h5", ".hdf5")):
        raise not_a_model(model)
    return model if model.endswith(".keras") else f"{model}/model.keras"


def recorded_columns(
    storage: Storage, model: str, *, named: bool = False
) -> tuple[list[str | list[str]], list[str]]:
    """Return features and labels, in the model's order, of the run that a model file lies in.

    Both are empty where it lies in none. With `named` features a run that cannot be read is none.
    """
    from distkeras_grid.trainers.saved_run import RUN

    uri = f"{model.rpartition('/')[0] or '.'}/{RUN}"
    description = _object_at(storage, uri)
    if "spec" not in description:
        # Some other file of this name.
        return [], []
    try:
        data = RunSpec.from_json(description["spec"]).data
        labels = [each["name"] for each in data.labels if isinstance(each, dict)]
        return [_column_of(field) for field in data.features], labels
    except (ConfigurationError, KeyError) as error:
        if named:
            return [], []
        nameless = isinstance(error, KeyError)
        reason = "a feature without a name" if nameless else str(error).removesuffix(".")
        raise ConfigurationError(
            f"The columns that the model was trained on stand in {uri}, whose spec cannot be read: "
            f"{reason}. Name them by --features."
        ) from error


def _column_of(field: dict[str, Any]) -> str | list[str]:
    """Return a feature as it was given: the name of its column, or the names of several."""
    return list(field.get("distkeras_grid", {}).get("columns", ())) or str(field["name"])


def recorded_predictions(storage: Storage, data: str) -> dict[str, str]:
    """Return ``prediction`` and ``label`` as ``predict`` recorded them beside a data set."""
    manifest = _object_at(storage, f"{data.rstrip('/')}/{MANIFEST}")
    labels = manifest.get("labels")
    columns = {
        "prediction": manifest.get("prediction"),
        "label": labels[0] if isinstance(labels, list) and len(labels) == 1 else None,
    }
    return {name: column for name, column in columns.items() if isinstance(column, str)}


def _object_at(storage: Storage, path: str) -> dict[str, Any]:
    """Return the JSON object in a file; an empty one where there is none."""
    if not storage.exists(path):
        return {}
    try:
        content = json.loads(storage.read_text(path))
    except UNREADABLE:
        return {}
    return content if isinstance(content, dict) else {}
