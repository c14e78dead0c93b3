"""Which rows come from which file, go into which split, and are read by which task; no I/O.

A look at a file gives an `InputFile`; a plan divides the files into `IngestTask`s. One task reads a
unit in one piece.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from data_prep.dataset.plan import FILE_BYTES
from data_prep.images.content_hash import pixel_digest
from data_prep.images.open_image import decode_image
from data_prep.ingest import cifar, idx
from data_prep.ingest.settings import CIFAR10, FOLDER, IDX, IngestSettings, known_classes
from data_prep.splits.assign import SPLITS, SplitSource, assign_splits, check_cells, copies
from data_prep.splits.labels import annotate, class_names
from distkeras_grid.errors import DataError, LabelError, PathNotFoundError

IDX_NAME = re.compile(r"(train|t10k)-(images|labels)[-.]idx[13]-ubyte(?:\.gz)?")
PREFIXES = {"train": "train", "t10k": "test"}
# A smaller file is not worth a task of its own.
ROWS_OF_A_TASK = 1000


@dataclass(frozen=True)
class InputFile:
    """The content of one file, as far as it is needed to plan."""

    uri: str
    sha256: str
    # Number of items, and the shape of an item, for a file of many items; else ()
    shape: tuple[int, ...] = ()
    labels: tuple[int, ...] = ()  # Labels in the file
    pixel_sha256: str | None = None  # Digest of the pixels of an image file


@dataclass(frozen=True)
class IngestTask:
    """Rows of one file that one task reads."""

    uri: str  # uri and source: The whole path, and the path below the input folder
    source: str
    split: str
    start: int  # start and stop: First item, and the item after the last
    stop: int
    labels: tuple[int, ...]  # Label of each item, as the number of its class
    partition: int
    sha256: str  # Digest of the file
    group: str | None = None  # Group of an image file, such as its specimen


@dataclass(frozen=True)
class IngestPlan:
    """Everything that will be read."""

    units: tuple[IngestTask, ...]  # Units in the order of their partitions
    classes: tuple[str, ...]
    # Height, width and channels in which images are read. Image files differ in size: they have 3
    # channels and no size here.
    shape: tuple[int, ...]
    left_out: dict[str, str] = field(default_factory=dict)  # Why files are not read, by path

    @property
    def counts(self) -> dict[str, dict[str, int]]:
        """Number of rows by split and class."""
        counts: dict[str, dict[str, int]] = {}
        for unit in self.units:
            by_class = counts.setdefault(unit.split, dict.fromkeys(self.classes, 0))
            for label, rows in Counter(unit.labels).items():
                by_class[self.classes[label]] += rows
        return counts

    @property
    def rows(self) -> int:
        """Number of rows of all splits."""
        return sum(unit.stop - unit.start for unit in self.units)

    @property
    def has_groups(self) -> bool:
        """Whether an image has a group."""
        return any(unit.group is not None for unit in self.units)


def look_at(uri: str, content: bytes, kind: str) -> InputFile:
    """Return what is in a file; only what the plan needs is decoded."""
    sha256 = hashlib.sha256(content).hexdigest()
    if kind == CIFAR10:
        images, labels = cifar.read_cifar(content, uri)
        return InputFile(uri, sha256, images.shape, tuple(labels.tolist()))
    if kind == IDX:
        shape = idx.idx_shape(content, uri)
        # One dimension: the file holds labels.
        values = idx.read_idx(content, uri).tolist() if len(shape) == 1 else ()
        return InputFile(uri, sha256, shape, tuple(values))
    # The same picture in two formats belongs to one split: the pixels are equal, the bytes are not.
    return InputFile(uri, sha256, pixel_sha256=pixel_digest(decode_image(content, uri)))


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
    if settings.format == IDX:
        return _plan_idx(inputs, settings, below, slots)
    if settings.format == CIFAR10:
        return _plan_cifar(inputs, settings, below)
    return _plan_images(inputs, settings, below, read_text, slots)


def tasks_for(rows: int, row_bytes: int, slots: int) -> int:
    """Return the number of tasks, and so of files, into which the rows of a split are divided.

    Examples
    --------
    >>> tasks_for(60_000, 784, slots=2), tasks_for(100, 784, slots=2)
    (4, 1)
    """
    few = min(2 * slots, math.ceil(rows / ROWS_OF_A_TASK))
    return max(few, math.ceil(rows * row_bytes / FILE_BYTES), 1)


def _plan_idx(
    inputs: Sequence[InputFile], settings: IngestSettings, below: Callable[[str], str], slots: int
) -> IngestPlan:
    named: dict[tuple[str, str], InputFile] = {}
    for each in inputs:
        match = IDX_NAME.fullmatch(each.uri.rpartition("/")[2])
        if match is None:
            continue
        key = match.group(1), match.group(2)
        if key in named:
            raise DataError(f"{named[key].uri} and {each.uri} are the same. Keep one of them.")
        named[key] = each
    units: list[IngestTask] = []
    for prefix, split in PREFIXES.items():
        for what in ("images", "labels"):
            if (prefix, what) not in named:
                raise PathNotFoundError(
                    f"There is no file {prefix}-{what}-idx{3 if what == 'images' else 1}-ubyte.gz "
                    f"below {settings.input}. All four are needed, of train and of t10k."
                )
        units += _slices(named[prefix, "images"], named[prefix, "labels"], split, below, slots)
    shapes = {_image_shape(named[prefix, "images"]) for prefix in PREFIXES}
    if len(shapes) > 1:
        raise DataError(f"Training and test images differ in shape: {sorted(shapes)}.")
    highest = max(label for each in inputs for label in each.labels)
    return IngestPlan(_numbered(units), known_classes(settings, highest), shapes.pop())


def _image_shape(images: InputFile) -> tuple[int, ...]:
    shape = images.shape[1:]
    if len(shape) == 2:
        return (*shape, 1)
    if len(shape) == 3 and shape[2] in (1, 3):
        return shape
    raise DataError(
        f"{images.uri} has items of shape {shape}; images have (height, width), or (height, "
        "width, 1 or 3)."
    )


def _slices(
    images: InputFile, labels: InputFile, split: str, below: Callable[[str], str], slots: int
) -> list[IngestTask]:
    count, *item = images.shape
    if count != len(labels.labels) or not count:
        raise DataError(
            f"{images.uri} has {count:,} images and {labels.uri} {len(labels.labels):,} labels. "
            "They do not belong together."
        )
    tasks = tasks_for(count, math.prod(item), slots)
    edges = [count * number // tasks for number in range(tasks + 1)]
    return [
        IngestTask(
            *(images.uri, below(images.uri), split, start, stop),
            *(labels.labels[start:stop], number, images.sha256),
        )
        for number, (start, stop) in enumerate(itertools.pairwise(edges))
    ]


def _plan_cifar(
    inputs: Sequence[InputFile], settings: IngestSettings, below: Callable[[str], str]
) -> IngestPlan:
    units = []
    for number, each in enumerate(inputs):
        split = "test" if each.uri.endswith("/test_batch.bin") else "train"
        labels, rows = each.labels, each.shape[0]
        units.append(
            IngestTask(each.uri, below(each.uri), split, 0, rows, labels, number, each.sha256)
        )
    missing = {"train", "test"} - {unit.split for unit in units}
    if missing:
        wanted = "test_batch.bin" if "test" in missing else "data_batch_1.bin to 5"
        raise PathNotFoundError(f"There is no {wanted} below {settings.input}. Unpack it there.")
    shape = (cifar.SIDE, cifar.SIDE, cifar.CHANNELS)
    return IngestPlan(tuple(units), known_classes(settings, 0), shape)


def _plan_images(
    inputs: Sequence[InputFile],
    settings: IngestSettings,
    below: Callable[[str], str],
    read_text: Callable[[str], str],
    slots: int,
) -> IngestPlan:
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
    units: list[IngestTask] = []
    size = settings.size or 0
    row_bytes = size * size * (1 if settings.gray else 3)
    for split in SPLITS:
        members = [s for s in sources if splits[s.path] == split and s.path not in left_out]
        tasks = tasks_for(len(members), row_bytes, slots)
        units += [
            IngestTask(
                *(uris[source.path].uri, source.path, split, 0, 1),
                *((numbers[source.label],), number * tasks // len(members)),
                *(source.sha256, source.group),
            )
            for number, source in enumerate(sorted(members, key=lambda source: source.path))
        ]
    return IngestPlan(_numbered(units), classes, (0, 0, 3), left_out)


def _folder_split(path: str) -> str:
    folder = path.partition("/")[0]
    if folder not in SPLITS:
        raise LabelError(
            f"{path} does not lie in a folder {', '.join(SPLITS)} below the input. Name the "
            "folders so, or divide the images by --split 0.8:0.1:0.1."
        )
    return folder


def _numbered(units: Iterable[IngestTask]) -> tuple[IngestTask, ...]:
    """Give each partition of each split a number of its own, in order."""
    numbers: dict[tuple[str, int], int] = {}
    return tuple(
        replace(unit, partition=numbers.setdefault((unit.split, unit.partition), len(numbers)))
        for unit in units
    )
