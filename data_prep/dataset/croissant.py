"""``_croissant.json``: a data set of tiles, described in the Croissant format 1.0; no I/O.

Search engines for data sets, and loaders such as ``mlcroissant``, read it
(https://docs.mlcommons.org/croissant/docs/croissant-spec.html). It is written with each version.
What only a person can say, such as the licence, is taken over from the file that is there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from data_prep.dataset.schema import COLUMNS, IMAGE_COLUMN
from distkeras_grid.errors import UNREADABLE, SchemaError
from distkeras_grid.feeding.schema import Field

# Readers of Parquet take other files for data, unless their names begin with this.
FILE = "_croissant.json"
# What a person may write into the file; each night keeps it.
USER_FIELDS = ("name", "license", "url", "creator", "publisher", "keywords")
UNKNOWN = "not stated"
FILES, ROWS, SPLITS = "files", "tiles", "splits"
TYPES = {"int": "sc:Integer", "double": "sc:Float", "string": "sc:Text"}
# What the format's own terms mean; those with a prefix of theirs follow.
OWN_TERMS = (
    "citeAs column equivalentProperty extract field fileObject fileProperty fileSet format "
    "includes isLiveDataset jsonPath key md5 parentField path recordSet references regex repeated "
    "replace samplingRate separator source subField transform"
)
CONTEXT = {name: f"cr:{name}" for name in OWN_TERMS.split()} | {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "conformsTo": "dct:conformsTo",
    "cr": "http://mlcommons.org/croissant/",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "dct": "http://purl.org/dc/terms/",
    "examples": {"@id": "cr:examples", "@type": "@json"},
    "rai": "http://mlcommons.org/croissant/RAI/",
    "sc": "https://schema.org/",
}


def describe(manifest: Mapping[str, Any], name: str, former: str | None = None) -> str:
    """Return the content of ``_croissant.json``."""
    image = Field.from_metadata(IMAGE_COLUMN, manifest["image"])
    number, digest = manifest["last_update"], manifest["hash"]
    # The format requires these, and a creator, which only a person can name.
    fields = {"name": name, "license": UNKNOWN, "url": UNKNOWN} | _user_fields(former)
    content = {
        "@context": CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": "http://mlcommons.org/croissant/1.0",
        **fields,
        "description": _description(manifest, image),
        "citeAs": f"{fields['name']}, version {number}, SHA-256 {digest}",
        "version": f"{number}.0.0",
        "datePublished": manifest["created"],
        "isLiveDataset": True,
        "distribution": [_files(manifest)],
        "recordSet": [_splits(manifest), _rows(image)],
    }
    return msgspec.json.format(msgspec.json.encode(content), indent=1).decode() + "\n"


def _user_fields(former: str | None) -> dict[str, Any]:
    """Return what people wrote into the file."""
    if former is None:
        return {}
    try:
        content = msgspec.json.decode(former, type=dict[str, Any])
    except UNREADABLE as error:
        raise SchemaError(
            f"{FILE} cannot be read: {error}. Mend it, or delete it: the next version writes it "
            "anew."
        ) from error
    return {name: content[name] for name in USER_FIELDS if name in content}


def _files(manifest: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "@type": "cr:FileSet",
        "@id": FILES,
        "name": FILES,
        "description": "Parquet, one folder for each split in each shard of this version",
        "encodingFormat": "application/x-parquet",
        "includes": [f"{shard}/split=*/*.parquet" for shard in manifest["shards"]],
    }


def _description(manifest: Mapping[str, Any], image: Field) -> str:
    height, width, channels = image.shape
    rows = [e for e in manifest["sources"] if e["status"] == "tiled" and "set_aside" not in e]
    classes = ", ".join(image.classes)
    text = (
        f"{manifest['tiles']:,} tiles of {height}x{width} pixels with {channels} channels of "
        f"{image.dtype}, cut from {len(rows):,} images of the classes {classes}. All tiles of an "
        "image are in one split."
    )
    changed = sum(any(name.startswith("stored_") for name in entry) for entry in rows)
    aside = sum("set_aside" in entry for entry in manifest["sources"])
    if changed or aside:
        text += (
            f" The files have former labels, splits or paths of {changed:,} images, and rows of "
            f"{aside:,} images that were excluded: the manifest has what is true now."
        )
    return text


def _splits(manifest: Mapping[str, Any]) -> dict[str, Any]:
    name = f"{SPLITS}/name"
    return {
        "@type": "cr:RecordSet",
        "@id": SPLITS,
        "name": SPLITS,
        "key": {"@id": name},
        "dataType": "cr:Split",
        "field": [_field(SPLITS, "name", "sc:Text", "name of the split")],
        "data": [{name: split} for split in sorted(manifest["counts"])],
    }


def _rows(image: Field) -> dict[str, Any]:
    height, width, channels = image.shape
    fields = [_image(image, f"{height}x{width} pixels, {channels} channels")]
    for name, kind, text in COLUMNS:
        source: dict[str, Any] = {"extract": {"column": name}}
        more: dict[str, Any] = {}
        if name == "split":
            # The name of the folder has this column; the files do not.
            source = {
                "extract": {"fileProperty": "fullpath"},
                "transform": {"regex": ".*split=([a-z]+)/.*"},
            }
            more = {"references": {"field": {"@id": f"{SPLITS}/name"}}}
        source["fileSet"] = {"@id": FILES}
        fields.append(_field(ROWS, name, TYPES[kind], text, source=source, **more))
    return {
        "@type": "cr:RecordSet",
        "@id": ROWS,
        "name": ROWS,
        "description": "one tile a row",
        "field": fields,
    }


def _image(image: Field, size: str) -> dict[str, Any]:
    source: dict[str, Any] = {"extract": {"column": IMAGE_COLUMN}, "fileSet": {"@id": FILES}}
    if not image.is_file:
        # The format has no type for bytes.
        text = f"{size}: bytes of an array of {image.dtype}, little-endian, row by row"
        if image.encoding == "difference":
            text += "; each row is its difference from the row above: add up the rows in this type"
        return _field(ROWS, IMAGE_COLUMN, "sc:Text", text, source=source)
    source["transform"] = {"jsonPath": "bytes"}
    return _field(ROWS, IMAGE_COLUMN, "sc:ImageObject", size, source=source)


def _field(record: str, name: str, kind: str, text: str, **more: Any) -> dict[str, Any]:
    return {
        "@type": "cr:Field",
        "@id": f"{record}/{name}",
        "name": name,
        "description": text,
        "dataType": kind,
        **more,
    }
