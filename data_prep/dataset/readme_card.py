"""``_README.md``: the description of a data set of tiles for people; no I/O.

Hadoop, Spark and pyarrow would take a file without the underscore for Parquet. It is written with
each version. People can edit the part between two marks, which is kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from data_prep.dataset.hugging_face import is_corrected
from data_prep.dataset.manifest import DataSet
from data_prep.splits.assign import SPLITS
from distkeras_grid.dataset.versions import file_of
from distkeras_grid.errors import SchemaError
from distkeras_grid.feeding.schema import Field

FILE = "_README.md"
BEGIN = "<!-- Yours: what stands from here to the next mark is kept. The rest is written anew. -->"
END = "<!-- End of your part. -->"
PLACEHOLDERS = """
## Origin

Who took the images, of what, with which instrument, when: not stated.

## Licence and consent

Not stated. Write it here, and as `license` into `_croissant.json`.

## Labels

Who gave them, by which rule, and how often two people agreed: not stated.

## Limits

What the images do not show, and what they should not be used for: not stated.
"""
MARKED = {"\\": "\\\\", "|": "\\|", "<": "&lt;", "`": "\\`", "*": "\\*", "_": "\\_", "[": "\\["}


def describe(known: DataSet, name: str, license: str, former: str | None) -> str:
    """Return the content of ``_README.md``."""
    manifest, image = known.content, known.image
    height, width, channels = image.shape
    number, digest = manifest["last_update"], manifest["hash"]
    lines = [
        f"# {_plain(name)}",
        "",
        BEGIN + _user_text(former) + END,
        "",
        "## Content",
        "",
        f"Version {number} of {manifest['created']}: {manifest['tiles']:,} tiles of "
        f"{height}x{width} pixels with {channels} channel{'s' * (channels > 1)} of {image.dtype}. "
        "All tiles of an image are in one split.",
        "",
        *_table(manifest, image),
        "",
        f"Licence: {_plain(license)}",
        "",
        "## How the tiles were made",
        "",
        *_made(manifest),
        "",
        "## How to read them",
        "",
        "```python",
        "from distkeras_grid import read_tiles",
        "",
        _reading([split for split in SPLITS if split in manifest["counts"]]),
        "```",
        "",
        _hugging_face(image, corrected=is_corrected(known)),
        "",
        f"`{file_of(number)}` lists each image with its label, group and split; `_croissant.json` "
        "describes the columns for programs.",
        "",
        "## How to cite",
        "",
        f"{_plain(name)}, version {number}, SHA-256 {digest}",
        "",
    ]
    return "\n".join(lines)


def _reading(splits: list[str]) -> str:
    """Return the line that reads these splits.

    Examples
    --------
    >>> _reading(["train"])
    '(train,) = read_tiles("PATH", splits=("train",))'
    """
    names = ", ".join(splits)
    quoted = ", ".join(f'"{split}"' for split in splits)
    if len(splits) == 1:
        return f'({names},) = read_tiles("PATH", splits=({quoted},))'
    return f'{names} = read_tiles("PATH", splits=({quoted}))'


def _hugging_face(image: Field, *, corrected: bool) -> str:
    """Return how ``datasets`` of Hugging Face reads the tiles."""
    export = "`distkeras-grid export --data PATH --format huggingface --output COPY`"
    if corrected:
        return (
            "The files lack corrections that were made later, so `datasets` of Hugging Face "
            f"refuses them: read a copy by {export}."
        )
    if image.is_file:
        return 'Or `datasets.load_dataset("PATH")` of Hugging Face.'
    return (
        'Or `datasets.load_dataset("PATH")` of Hugging Face, to which these tiles are bytes and '
        f"not images; {export} makes a copy with images."
    )


def _user_text(former: str | None) -> str:
    """Return the part of the page between the marks."""
    if former is None:
        return "\n" + PLACEHOLDERS + "\n"
    _, begin, rest = former.partition(BEGIN)
    text, end, _ = rest.rpartition(END)
    if not begin or not end:
        raise SchemaError(
            f"{FILE} lacks the line {END if begin else BEGIN!r}. Write it back, or give the page "
            "another name: the next version writes it anew."
        )
    return text


def _table(manifest: Mapping[str, Any], image: Field) -> list[str]:
    """Return the numbers of images and tiles of each class in each split."""
    images: Counter[tuple[str, str]] = Counter()
    for entry in manifest["sources"]:
        if entry["status"] == "tiled" and "set_aside" not in entry:
            images[entry["split"], entry["label"]] += 1
    splits = sorted(manifest["counts"])
    rows = [
        [label, *(_cell(images[s, label], manifest["counts"][s].get(label, 0)) for s in splits)]
        for label in image.classes
    ]
    totals = [
        _cell(
            sum(images[split, label] for label in image.classes),
            sum(manifest["counts"][split].values()),
        )
        for split in splits
    ]
    head = ["class (images / tiles)", *splits]
    lines = [head, ["---"] * len(head), *([_plain(r[0]), *r[1:]] for r in rows), ["all", *totals]]
    return [f"| {' | '.join(line)} |" for line in lines]


def _cell(images: int, tiles: int) -> str:
    return f"{images:,} / {tiles:,}"


def _made(manifest: Mapping[str, Any]) -> list[str]:
    chosen = {**manifest["spec"], **manifest["settings"]}
    shown = ("tile", "stride", "angles", "mode", "edge", "interpolation", "encoding", "pixel_size")
    lines = []
    for name in (*shown, "normalise", "keep", "near_duplicates", "seed"):
        value = chosen.get(name)
        if name == "angles" and isinstance(value, list) and len(value) > 1:
            value = f"{len(value)}, from {value[0]:g} to {value[-1]:g} degrees"
        if value is not None:
            lines.append(f"- {name.replace('_', ' ')}: {_plain(str(value))}")
    return lines


def _plain(text: str) -> str:
    """Return a text without Markdown markup.

    Examples
    --------
    >>> _plain("a < b")
    'a &lt; b'
    """
    return "".join(MARKED.get(letter, letter) for letter in " ".join(text.split()))
