"""Folds of a data set of tiles: which rows a run of a cross-validation holds out; no I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from distkeras_grid.errors import DataError

# Below the data set: one JSON file for each name of folds.
FOLDER = "_folds"
VERSION = 1
TRAIN, VALIDATION, TEST = "train", "validation", "test"


@dataclass(frozen=True)
class Folds:
    """Which fold holds out which image.

    Parameters
    ----------
    by : str
        A number of folds, or ``"group"``: one for each group.
    seed : int
    columns : tuple of str
        Names of the folds.
    held_out : dict of str to str
        The fold that holds out an image, by path; images of the split ``test`` are not there.
    """

    by: str
    seed: int
    columns: tuple[str, ...]
    held_out: dict[str, str]

    def to_json(self) -> dict[str, Any]:
        """Return the folds as JSON types."""
        return {
            "version": VERSION,
            "by": self.by,
            "seed": self.seed,
            "columns": list(self.columns),
            "held_out": dict(sorted(self.held_out.items())),
        }

    @classmethod
    def from_json(cls, content: Any) -> Folds:
        """Read what `to_json` wrote.

        Raises
        ------
        DataError
            If it is something else.
        """
        try:
            columns = tuple(str(name) for name in content["columns"])
            held_out = {str(path): str(name) for path, name in content["held_out"].items()}
            known = content["version"] == VERSION and set(held_out.values()) <= set(columns)
            folds = cls(str(content["by"]), int(content["seed"]), columns, held_out)
        except (TypeError, KeyError, ValueError, AttributeError):
            known = False
        if not known:
            raise DataError(
                "A file of folds is damaged or of another version. Make the folds again "
                "(distkeras-grid folds --overwrite)."
            )
        return folds


def splits_in(folds: Folds, column: str, splits: Mapping[str, str]) -> dict[str, str]:
    """Return the split of each image in one fold.

    Parameters
    ----------
    folds : Folds
    column : str
        Name of the fold.
    splits : mapping of str to str
        The split of each image outside of any fold, by path.

    Returns
    -------
    dict of str to str
        ``"validation"`` where the fold holds an image out, ``"test"`` where the data set does,
        otherwise ``"train"``.

    Raises
    ------
    DataError
        If images came after the folds were made.
    """
    missing = [
        path for path, split in splits.items() if split != TEST and path not in folds.held_out
    ]
    if missing:
        raise DataError(
            f"{len(missing)} images have no fold, such as {missing[0]}: they came after the folds "
            "were made. Run distkeras-grid folds again; the others keep theirs."
        )
    held = {path for path in splits if folds.held_out.get(path) == column}
    return {
        path: TEST if split == TEST else VALIDATION if path in held else TRAIN
        for path, split in splits.items()
    }
