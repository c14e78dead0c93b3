"""How a change of a data set of tiles becomes visible: decided in one step, finished after a kill.

Shards are written below the data set under names that readers skip (``_new-...``). Then
``_update.json``, a journal, says which folders come, which go, and what ``_dataset.json`` will say.
With it the change is decided: whoever comes next finishes it. Without it nothing happened, and what
lies there under hidden names is deleted.

Folders come first, then ``_dataset.json`` names them instead of the former ones, in one step, and
then those go. `distkeras_grid.spark.dataframes.read_parquet` reads the folders that it names.
"""

from __future__ import annotations

import json
import re
import uuid
from dataclasses import dataclass, field
from typing import Any, Protocol

from distkeras_grid.errors import OutputExistsError
from distkeras_grid.spark.dataframes import MANIFEST

JOURNAL = "_update.json"
# Spark skips names that begin with "_", but not those that hold a "=".
_HIDDEN = re.compile(r"_(new|old)-\d+\.[0-9a-f]{32}")


@dataclass
class Change:
    """Which folders come and go.

    Parameters
    ----------
    come, go : list of (str, str)
        Names below the root, present and new.
    """

    come: list[tuple[str, str]] = field(default_factory=list)
    go: list[tuple[str, str]] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.come or self.go)


class Files(Protocol):
    """What is needed of `distkeras_grid.spark.storage.Storage`."""

    def exists(self, uri: str) -> bool: ...  # noqa: D102
    def list_names(self, uri: str) -> list[str]: ...  # noqa: D102
    def read_text(self, uri: str) -> str: ...  # noqa: D102
    def write_text(self, uri: str, content: str, *, overwrite: bool = False) -> None: ...  # noqa: D102
    def make_dirs(self, uri: str) -> None: ...  # noqa: D102
    def rename(self, source: str, target: str) -> None: ...  # noqa: D102
    def delete(self, uri: str) -> bool: ...  # noqa: D102


def hidden_name(kind: str, shard: int) -> str:
    """Return a new name, ``"new"`` or ``"old"``, of a shard that readers do not see."""
    return f"_{kind}-{shard}.{uuid.uuid4().hex}"


def commit(
    files: Files,
    root: str,
    change: Change,
    manifest: dict[str, Any],
    basis: dict[str, Any] | None,
) -> None:
    """Publish a change.

    Parameters
    ----------
    files : Files
    root : str
        The data set.
    change : Change
    manifest : dict
        The new content of ``_dataset.json``.
    basis : dict or None
        Its content when the change was planned.

    Raises
    ------
    OutputExistsError
        If another update came between, by somebody who did not take the lock.
    """
    journal = {"come": change.come, "go": change.go, "dataset": manifest}
    # Of two that are here at once, one creates it.
    files.write_text(f"{root}/{JOURNAL}", json.dumps(journal) + "\n")
    if read_manifest(files, root) != basis:
        files.delete(f"{root}/{JOURNAL}")
        raise OutputExistsError(
            f"{root} was changed by another update meanwhile. Run this one again, both with the "
            "same --lock."
        )
    _finish(files, root, journal)


def read_manifest(files: Files, root: str) -> dict[str, Any] | None:
    """Return the content of ``_dataset.json``, None where there is none."""
    uri = f"{root}/{MANIFEST}"
    if not files.exists(uri):
        return None
    content: dict[str, Any] = json.loads(files.read_text(uri))
    return content


def recover(files: Files, root: str) -> bool:
    """Finish the change that a killed update had decided, and delete what others left behind.

    Parameters
    ----------
    files : Files
    root : str
        The data set; it need not exist.

    Returns
    -------
    bool
        Whether there was one to finish.
    """
    if not files.exists(root):
        return False
    names = files.list_names(root)
    decided = JOURNAL in names
    if decided:
        _finish(files, root, json.loads(files.read_text(f"{root}/{JOURNAL}")))
    for name in names:
        if _HIDDEN.fullmatch(name):
            files.delete(f"{root}/{name}")
    return decided


def _finish(files: Files, root: str, journal: dict[str, Any]) -> None:
    """Do what is left of a journal; each step can have been done already."""
    for source, target in journal["come"]:
        # Numbers of shards are never used again: what has the name is this one.
        if files.exists(f"{root}/{target}"):
            continue
        if "/" in target:
            files.make_dirs(f"{root}/{target.rpartition('/')[0]}")
        files.rename(f"{root}/{source}", f"{root}/{target}")
    text = json.dumps(journal["dataset"], indent=1) + "\n"
    files.write_text(f"{root}/{MANIFEST}", text, overwrite=True)
    for name, hidden in journal["go"]:
        # Deleting takes a while, and readers that list the folder shall see no half of it.
        if files.exists(f"{root}/{name}"):
            files.rename(f"{root}/{name}", f"{root}/{hidden}")
        files.delete(f"{root}/{hidden}")
    files.delete(f"{root}/{JOURNAL}")
