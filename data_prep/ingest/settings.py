"""All settings of an ingest job."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from data_prep.dataset.settings import suffix_glob
from data_prep.ingest import cifar
from data_prep.ingest.resize import TargetSize
from data_prep.ingest.transforms import PCA_SHAPE
from data_prep.splits.assign import parse_fractions
from data_prep.splits.labels import compile_pattern, parse_rule
from distkeras_grid.errors import ConfigurationError
from distkeras_grid.feeding.schema import Field

IDX, CIFAR10, IMAGES = "idx", "cifar10", "images"
FORMATS = (IDX, CIFAR10, IMAGES)
FOLDER = "folder"
IMAGE_COLUMN = "image"
# Which files of a folder belong to each format.
GLOBS = {
    IDX: "{train,t10k}-{images,labels}[-.]idx[13]-ubyte{.gz,}",
    CIFAR10: "{data_batch_*,test_batch}.bin",
    IMAGES: suffix_glob(),
}


@dataclass(frozen=True)
class IngestSettings:
    """Which images to ingest, and how to convert them.

    Parameters
    ----------
    format : {"idx", "cifar10", "images"}
        The four IDX files of MNIST and the like, the binary files of CIFAR-10, or image files.
    input : str
        Folder of the files, including its subfolders; any Hadoop path.
    output : str
        Folder of the data set, new or empty; any Hadoop path.
    size : int, optional
        Height and width of every image [pixels]; others are stretched to it. Needed for image
        files, whose sizes differ.
    gray : bool, default False
        Convert to one channel. Otherwise image files get three.
    standardise : bool, default False
        Scale each pixel to mean 0 and standard deviation 1 over the training split (float32).
    pca : bool, default False
        Replace the pixels by the 784 principal components of the training split's gray pixels, as
        28x28x1 (float32); with `standardise`, each is divided by its standard deviation.
    labels : str, default "folder"
        Labels of image files; see `data_prep.splits.labels.annotate`.
    group : str, optional
        For image files: regular expression with a group named ``group``, searched in the path;
        images of one group share a split, and rows have the column ``group``.
    split : str, default "0.8:0.1:0.1"
        For image files: shares of train, validation and test, or "folder": the first folder below
        the input names the split. The other formats have a split of their own.
    seed : int, default 0
        Seed of the split by shares.
    allow_empty : bool, default False
        Accept that a split by shares has no image of some class.
    classes : tuple of str, default ()
        Names of the classes of IDX files, in the order of their numbers; default: the numbers.

    Raises
    ------
    ConfigurationError
        If a value cannot be used.

    Examples
    --------
    >>> IngestSettings("images", "photos", "data", size=64, gray=True).look((480, 640, 3)).shape
    (64, 64, 1)
    """

    format: str
    input: str
    output: str
    size: int | None = None
    gray: bool = False
    standardise: bool = False
    pca: bool = False
    labels: str = FOLDER
    group: str | None = None
    split: str = "0.8:0.1:0.1"
    seed: int = 0
    allow_empty: bool = False
    classes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.format not in FORMATS:
            raise ConfigurationError(
                f"format must be one of {', '.join(FORMATS)}. Received: {self.format!r}."
            )
        if not self.input or not self.output:
            raise ConfigurationError("input and output must be paths. Received: an empty one.")
        if self.size is not None and (isinstance(self.size, bool) or self.size < 1):
            raise ConfigurationError(f"size must be at least 1 pixel. Received: {self.size!r}.")
        if self.size is None and self.format == IMAGES:
            raise ConfigurationError("Image files differ in size. Give one for all (--size 128).")
        if self.pca and not self.gray:
            raise ConfigurationError("Principal components are of gray images. Give --gray, too.")
        if self.classes and self.format != IDX:
            raise ConfigurationError(
                f"classes are for IDX files, which have no names in them; {self.format} has, so "
                f"leave out {', '.join(self.classes)}."
            )
        if self.group is not None and self.format != IMAGES:
            raise ConfigurationError(
                f"The images in files of the format {self.format} have no groups. Received: group "
                f"{self.group!r}. Leave it out."
            )
        if self.group is not None:
            compile_pattern(self.group, "group")
        _ = self.fractions
        parse_rule(self.labels)

    @property
    def fractions(self) -> dict[str, float]:
        """Shares by split; empty where folders name the split."""
        return {} if self.split == FOLDER else parse_fractions(self.split)

    @property
    def file_glob(self) -> str:
        """Names of the files of the format."""
        return GLOBS[self.format]

    @property
    def transforms(self) -> bool:
        """Whether the pixels become float32."""
        return self.standardise or self.pca

    def look(self, shape: tuple[int, ...]) -> TargetSize:
        """Return the look for images of `shape`: height, width and channels."""
        height, width, channels = shape
        if self.size is not None:
            height = width = self.size
        return TargetSize(height, width, 1 if self.gray else channels)

    def field(self, look: TargetSize, classes: tuple[str, ...]) -> Field:
        """Return the description of the image column."""
        if not self.transforms:
            return pixel_field(look, classes)
        shape = PCA_SHAPE if self.pca else look.shape
        return Field(IMAGE_COLUMN, shape, dtype="float32", classes=classes)

    def to_json(self) -> dict[str, Any]:
        """Return the values as JSON types."""
        return {**vars(self), "classes": list(self.classes)}


def pixel_field(look: TargetSize, classes: tuple[str, ...] = ()) -> Field:
    """Return the field of unchanged pixels; models see values from 0 to 1."""
    return Field(IMAGE_COLUMN, look.shape, dtype="uint8", scale=1 / 255, classes=classes)


def known_classes(settings: IngestSettings, highest: int) -> tuple[str, ...]:
    """Return the names of the classes for a format that numbers them."""
    if settings.format == CIFAR10:
        return cifar.CLASSES
    if not settings.classes:
        return tuple(str(number) for number in range(highest + 1))
    if len(settings.classes) <= highest:
        raise ConfigurationError(
            f"The files have labels up to {highest}, and {len(settings.classes)} names of classes "
            f"were given: {', '.join(settings.classes)}."
        )
    return settings.classes
