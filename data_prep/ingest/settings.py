"""All settings of an ingest job."""

from __future__ import annotations

from dataclasses import dataclass

from data_prep.dataset.schema import IMAGE_COLUMN
from data_prep.dataset.settings import suffix_glob
from data_prep.splits.assign import parse_fractions
from data_prep.splits.labels import compile_pattern, parse_rule
from distkeras_grid.errors import ConfigurationError
from distkeras_grid.feeding.schema import Field

FOLDER = "folder"


@dataclass(frozen=True)
class IngestSettings:
    """Which images to ingest, and how to convert them.

    Parameters
    ----------
    input : str
        Folder of the images, including its subfolders; any Hadoop path.
    output : str
        Folder of the data set, new or empty; any Hadoop path.
    size : int
        Height and width of every image [pixels]; others are stretched to it.
    gray : bool, default False
        Convert to one channel. Otherwise images get three.
    labels : str, default "folder"
        Labels of the images; see `data_prep.splits.labels.annotate`.
    group : str, optional
        Regular expression with a group named ``group``, searched in the path; images of one group
        share a split, and rows have the column ``group``.
    split : str, default "0.8:0.1:0.1"
        Shares of train, validation and test, or "folder": the first folder below the input names
        the split.
    seed : int, default 0
        Seed of the split by shares.
    allow_empty : bool, default False
        Accept that a split by shares has no image of some class.

    Raises
    ------
    ConfigurationError
        If a value cannot be used.

    Examples
    --------
    >>> IngestSettings("photos", "data", 64, gray=True).shape
    (64, 64, 1)
    """

    input: str
    output: str
    size: int
    gray: bool = False
    labels: str = FOLDER
    group: str | None = None
    split: str = "0.8:0.1:0.1"
    seed: int = 0
    allow_empty: bool = False

    def __post_init__(self) -> None:
        if not self.input or not self.output:
            raise ConfigurationError("input and output must be paths. Received: an empty one.")
        if self.size < 1:
            raise ConfigurationError(f"size must be at least 1 pixel. Received: {self.size!r}.")
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
        """Names of the image files."""
        return suffix_glob()

    @property
    def shape(self) -> tuple[int, int, int]:
        """Height, width and channels of every image."""
        return self.size, self.size, 1 if self.gray else 3

    def field(self, classes: tuple[str, ...]) -> Field:
        """Return the description of the image column; models see values from 0 to 1."""
        return Field(IMAGE_COLUMN, self.shape, dtype="uint8", scale=1 / 255, classes=classes)
