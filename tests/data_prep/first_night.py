"""The first night of a data set, made once for a module: each test gets a copy of its own.

A night costs seconds of Spark, and a copy milliseconds. Nothing in a data set says where it lies.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from data_prep import TilingSettings, update_tiles
from data_prep.dataset.update import UpdateResult

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class FirstNight:
    """Images, and their data set.

    Parameters
    ----------
    settings : TilingSettings
        Input and output are read only.
    done : Update
        What the night said.
    said : list of str
        Its lines.
    """

    settings: TilingSettings
    done: UpdateResult
    said: list[str]

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
