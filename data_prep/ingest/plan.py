"""Which image goes into which split, and is read by which task; no I/O."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from data_prep.dataset.plan import FILE_BYTES
from data_prep.ingest.settings import FOLDER, IngestSettings
from data_prep.splits.assign import SPLITS, SplitSource, assign_splits, check_cells, copies
from data_prep.splits.labels import annotate, class_names
from distkeras_grid.errors import LabelError

# A smaller file is not worth a task of its own.
ROWS_OF_A_TASK = 1000


@dataclass(frozen=True)
class InputFile:
    """The content of an image file, as far as it is needed to plan."""

    uri: str
    sha256: str
    # The same picture in two formats belongs to one split: the pixels are equal, the bytes are not.
    pixel_sha256: str | None


@dataclass(frozen=True)
class PlannedImage:
    """An image that becomes a row."""

    uri: str  # uri and source: The whole path, and the path below the input folder
    source: str
    split: str
    label: int  # Number of its class
    partition: int
    sha256: str  # Digest of the file
    group: str | None = None  # Its group, such as its specimen


@dataclass(frozen=True)
class IngestPlan:
    """Everything that will be read."""

    images: tuple[PlannedImage, ...]  # In the order of their partitions
    classes: tuple[str, ...]
    left_out: dict[str, str]  # Why files are not read, by path

    @property
    def counts(self) -> dict[str, dict[str, int]]:
        """Number of images by split and class."""
        counts: dict[str, dict[str, int]] = {}
        for (split, label), rows in Counter((e.split, e.label) for e in self.images).items():
            by_class = counts.setdefault(split, dict.fromkeys(self.classes, 0))
            by_class[self.classes[label]] = rows
        return counts

    @property
    def has_groups(self) -> bool:
        """Whether an image has a group."""
        return any(each.group is not None for each in self.images)


def make_plan(
    inputs: Sequence[InputFile],
    settings: IngestSettings,
    below: Callable[[str], str],
    read_text: Callable[[str], str],
    slots: int,
) -> IngestPlan:
    """Plan what to read.

    `inputs`: files, sorted by path.
    """
    uris = {below(each.uri): each for each in inputs}
    annotations = annotate(list(uris), settings.labels, read_text, settings.group)
    sources = [
        SplitSource(
            *(path, each.sha256, annotations[path].label, annotations[path].group),
            _folder_split(path) if settings.split == FOLDER else annotations[path].split,
            each.pixel_sha256,
        )
        for path, each in uris.items()
    ]
    splits = assign_splits(sources, settings.fractions, settings.seed)
    if not (settings.allow_empty or any(source.split for source in sources)):
        check_cells(sources, splits, settings.fractions)
    classes = class_names([source.label for source in sources])
    numbers = {name: number for number, name in enumerate(classes)}
    left_out = copies(sources)
    images: list[PlannedImage] = []
    for split in SPLITS:
        members = [s for s in sources if splits[s.path] == split and s.path not in left_out]
        tasks = tasks_for(len(members), math.prod(settings.shape), slots)
        first = images[-1].partition + 1 if images else 0
        images += [
            PlannedImage(
                *(uris[source.path].uri, source.path, split, numbers[source.label]),
                *(first + number * tasks // len(members), source.sha256, source.group),
            )
            for number, source in enumerate(sorted(members, key=lambda source: source.path))
        ]
    return IngestPlan(tuple(images), classes, left_out)


def tasks_for(rows: int, row_bytes: int, slots: int) -> int:
    """Return the number of tasks, and so of files, into which the rows of a split are divided.

    Examples
    --------
    >>> tasks_for(60_000, 784, slots=2), tasks_for(100, 784, slots=2)
    (4, 1)
    """
    few = min(2 * slots, math.ceil(rows / ROWS_OF_A_TASK))
    return max(few, math.ceil(rows * row_bytes / FILE_BYTES), 1)


def _folder_split(path: str) -> str:
    folder = path.partition("/")[0]
    if folder not in SPLITS:
        raise LabelError(
            f"{path} does not lie in a folder {', '.join(SPLITS)} below the input. Name the "
            "folders so, or divide the images by --split 0.8:0.1:0.1."
        )
    return folder
