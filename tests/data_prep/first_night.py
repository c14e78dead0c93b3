"""The first night of a data set, made once for a module: each test gets a copy of its own.

A night costs seconds of Spark, and a copy milliseconds. Nothing in a data set says where it lies.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from data_prep import TilingSettings, update_tiles
from data_prep.dataset.update import UpdateResult

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def draw(path: Path, seed: int, size: tuple[int, int] = (32, 64)) -> None:
    """Write a picture of this height and width; two tiles of 32 cover it by default."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8)
    Image.fromarray(pixels).save(path)


@dataclass(frozen=True)
class FirstNight:
    """Images, and their data set."""

    settings: TilingSettings  # Input and output are read only
    done: UpdateResult  # What the night said
    said: list[str]  # Its lines

    @classmethod
    def of(cls, settings: TilingSettings, spark: SparkSession) -> FirstNight:
        """Tile the images."""
        said: list[str] = []
        return cls(settings, update_tiles(settings, spark=spark, say=said.append), said)

    def copy_images(self, folder: Path) -> Path:
        """Copy the images with the times of their files, by which a night knows them again."""
        source = Path(self.settings.input)
        return Path(shutil.copytree(source, folder / source.name))

    def copy_tiles(self, output: str) -> UpdateResult:
        """Copy the data set; return what its night said."""
        shutil.copytree(self.settings.output, output)
        return self.done

    def copy(self, folder: Path) -> TilingSettings:
        """Copy both, and return the settings of the next night."""
        output = folder / Path(self.settings.output).name
        self.copy_tiles(str(output))
        return replace(self.settings, input=str(self.copy_images(folder)), output=str(output))
