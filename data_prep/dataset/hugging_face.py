"""``.huggingface.yaml``: how Hugging Face ``datasets`` reads a data set.

Without this file, ``datasets`` puts each Parquet file of a folder into the split ``train``, and
does not take a struct of bytes and path for an image
(https://huggingface.co/docs/datasets/repository_structure). ``README.md`` could say the same, but
Spark and pyarrow try to read it as Parquet: they skip only names that begin with a dot or an
underscore.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from data_prep.dataset.manifest import DataSet
from data_prep.dataset.schema import COLUMNS, IMAGE_COLUMN
from distkeras_grid.dataset.manifest import TILED

CARD = ".huggingface.yaml"
# Type names in ``datasets`` for Spark's types.
KINDS = {"int": "int32", "double": "float64", "string": "string"}
LABEL, SPLIT = "label", "split"
# `datasets` names this file in its error. Without the error it would show outdated labels.
CORRECTED = "corrected-since-it-was-tiled/use-distkeras-grid-export-format-huggingface.parquet"


def describe_tiles(known: DataSet) -> str:
    """Return the content of ``.huggingface.yaml`` for a data set of tiles."""
    image = known.image
    kinds: dict[str, Any] = {name: KINDS[kind] for name, kind, _ in COLUMNS if name != SPLIT}
    if image.classes:
        kinds[LABEL] = class_label(image.classes)
    first = {IMAGE_COLUMN: "image" if image.is_file else "binary"}
    return describe(_paths(known), first | kinds)


def is_corrected(known: DataSet) -> bool:
    """Whether the files lack a correction or an exclusion: ``datasets`` must refuse them."""
    return bool(known.manifest.set_aside() or known.manifest.corrections())


def describe(paths: Mapping[str, Sequence[str]], features: Mapping[str, Any]) -> str:
    """Return the content of ``.huggingface.yaml``, as JSON, which is YAML."""
    files = [{"split": split, "path": list(patterns)} for split, patterns in paths.items()]
    columns = [{"name": name, "dtype": kind} for name, kind in features.items()]
    content = {
        "configs": [{"config_name": "default", "data_files": files}],
        "dataset_info": {"features": columns},
    }
    # Readers of YAML do not join the two escapes of a character beyond 16 bits.
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def class_label(classes: Sequence[str]) -> dict[str, Any]:
    """Return the type of the label of named classes."""
    return {"class_label": {"names": {str(number): name for number, name in enumerate(classes)}}}


def _paths(known: DataSet) -> dict[str, list[str]]:
    """Return patterns of the files of this version, by split."""
    splits = sorted(set(known.manifest.splits().values()))
    if is_corrected(known):
        return {split: [CORRECTED] for split in splits}
    shards: dict[str, set[int]] = {}
    for each in known.entries.values():
        # An image whose tiles are all dropped by the conditions is in no shard.
        if each.status == TILED and each.shard is not None:
            shards.setdefault(str(each.split), set()).add(each.shard)
    names = known.shards
    # A pattern for all shards of the folder would include those of former versions.
    return {
        split: [f"{names[number]}/split={split}/*.parquet" for number in sorted(shards[split])]
        for split in splits
        if split in shards
    }
