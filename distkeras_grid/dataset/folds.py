"""Folds of a data set of tiles: which rows a run of a cross-validation holds out; no I/O."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from distkeras_grid.disjoint_set import DisjointSet
from distkeras_grid.errors import DataError, SplitLeakError

TRAIN, VALIDATION, TEST = "train", "validation", "test"


@dataclass(frozen=True)
class Folds:
    """Which fold holds out which image."""

    by: str  # A number of folds, or ``"group"``: one for each group
    seed: int
    columns: tuple[str, ...]  # Names of the folds
    # The fold that holds out an image, by path; images of the split ``test`` are not there
    held_out: dict[str, str]

    def to_json(self) -> dict[str, Any]:
        """Return the folds as JSON types."""
        return {
            "by": self.by,
            "seed": self.seed,
            "columns": list(self.columns),
            "held_out": dict(sorted(self.held_out.items())),
        }


def check_together(held_out: Mapping[str, str], pairs: Iterable[tuple[str, str, str]]) -> None:
    """Refuse folds that separate what belongs together now."""
    units = DisjointSet()
    # An image with a fold, by the root of its unit.
    paths: dict[Hashable, str] = {path: path for path in held_out}
    for one, other, why in pairs:
        parts = units.root(one), units.root(other)
        first, second = (paths.get(part) for part in parts)
        if first is not None and second is not None and held_out[first] != held_out[second]:
            reason = why if {first, second} == {one, other} else f"{one} and {other}: {why}"
            raise SplitLeakError(
                f"{first} ({held_out[first]}) and {second} ({held_out[second]}) belong "
                f"together ({reason}), but this was not known when the folds were made. Make the "
                "folds again (distkeras-grid folds --overwrite), or make others under another "
                "--name."
            )
        units.join(one, other)
        if first is not None:
            paths[parts[1]] = first


def splits_in(folds: Folds, column: str, splits: Mapping[str, str]) -> dict[str, str]:
    """Return the split of each image in one fold."""
    missing = [
        path for path, split in splits.items() if split != TEST and path not in folds.held_out
    ]
    if missing:
        raise DataError(
            f"{len(missing)} images have no fold, such as {missing[0]}: they came after the folds "
            "were made. Run distkeras-grid folds again; the others keep theirs."
        )
    validation = {path for path in splits if folds.held_out.get(path) == column}
    return {
        path: TEST if split == TEST else VALIDATION if path in validation else TRAIN
        for path, split in splits.items()
    }
