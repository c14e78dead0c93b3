"""Local sets of tiles that are never written: each worker cuts the tiles that it has drawn.

A tile is a number, which gives an image and one of the tile positions of that image. So no list of
tiles is needed, however many there are. A worker reads images, which are smaller than their turned
and overlapping tiles.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from dataclasses import field as hidden
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import cv2
import numpy as np
from numpy.typing import NDArray

from data_prep.geometry.grid import TileSpec
from data_prep.geometry.regions import NO_ZONES, Zones
from data_prep.geometry.tiler import crop_tile
from data_prep.geometry.tiling_config import TilingConfig
from data_prep.images.intensity import ValueRange, range_from_columns
from data_prep.images.multifile_images import refuse_folders
from data_prep.images.preprocess import PreparedImage, prepare
from data_prep.on_the_fly.tile_index import frames_of, look_at_images
from data_prep.spark.discovery import list_images
from distkeras_grid.errors import ImageError
from distkeras_grid.feeding.schema import Field
from distkeras_grid.local_sets.tile_index import Numbers, TileIndex
from distkeras_grid.progress import Say
from distkeras_grid.spark.storage import Storage
from distkeras_grid.stores.dataset_index import DatasetIndex
from distkeras_grid.stores.locations import scheme_of
from distkeras_grid.stores.mirrors import ByteRange, MirrorReader, Mirrors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# A worker holds the file of an image as a whole, for a moment twice while HDFS sends it [bytes].
MOST_FETCHED_BYTES = 512 << 20
# Angle, left and top edge of each tile of an image.
_Places = tuple[NDArray[np.float64], Numbers, Numbers]


def catalogue_images(
    images: str,
    spec: TileSpec | None = None,
    *,
    spark: SparkSession | None = None,
    say: Say = lambda _: None,
    **options: Any,
) -> DatasetIndex:
    """Return the tiles of a folder of images as data for `distkeras_grid.LocalSets`.

    Images are read, labelled and split as by `tile_images`, and have the same tiles. A tile is
    cut when a worker draws it.

    Parameters
    ----------
    images : str
        Folder of images, with all below it. The workers must be able to read it, or a mirror of it.
    spec : TileSpec, optional
        How images are cut; default ``TileSpec()``.
    spark : SparkSession, optional
        Default: the running session, or a new local one.
    say : callable, optional
        Receives progress lines.
    **options
        See `data_prep.index_tiles`.

    Returns
    -------
    Catalogue
        Pass it to `LocalSets`. A trainer on it has ``features_col="image"``.

    Raises
    ------
    UnknownArgumentError
        If an option is none of these.
    PathNotFoundError
        If there is no such folder.
    ConfigurationError
        If workers cannot read the folder by themselves.
    EmptyDataError, ImageError, LabelError, SplitLeakError
        If the images cannot be used, or the file of one has more than 512 MiB.

    Examples
    --------
    >>> tiles = catalogue_images("hdfs:///raw", TileSpec(128))           # doctest: +SKIP
    >>> sets = LocalSets(tiles, iterations=18, local_train=6000)         # doctest: +SKIP
    """
    looked = look_at_images("catalogue_images", images, spec, spark, say, options)
    root = looked.cutting.root
    scheme_of(root)
    sources = [each for each in looked.plan.sources if each.tiles]
    scans = [looked.plan.scan(each) for each in sources]
    refuse_folders(scan.uri for scan in scans)
    listed = list_images(looked.session, Storage(looked.session), looked.settings).files
    names = [each.source for each in sources if each.source in listed]
    check_lengths({name: listed[name].length for name in names})
    numbers = np.arange(len(sources))
    store = ImageStore(
        pool=TileIndex.of(
            [each.tiles for each in sources],
            numbers,
            [looked.plan.classes.index(str(each.label)) for each in sources],
            len(looked.plan.classes),
        ),
        field=looked.image,
        locations=(root,),
        cutting=looked.cutting,
        files=tuple(
            ImageFile(
                *(looked.cutting.path_of(scan.uri), scan.sha256, scan.width, scan.height),
                cut_size=(scan.cut_width, scan.cut_height),
                value_range=range_from_columns(scan.low, scan.high, scan.stain),
            )
            for scan in scans
        ),
    )
    say(f"{len(store.pool):,} tiles of {len(sources):,} images are catalogued")
    return DatasetIndex(store, tuple(str(each.split) for each in sources))


def check_lengths(lengths: Mapping[str, int]) -> None:
    """Refuse files that a worker should not hold in memory.

    `lengths`: bytes of the files, by path.
    """
    path = max(lengths, key=lengths.__getitem__, default=None)
    if path is not None and lengths[path] > MOST_FETCHED_BYTES:
        raise ImageError(
            f"{path} has {lengths[path]:,} bytes. Workers of local sets hold the file of an image "
            f"in memory, up to {MOST_FETCHED_BYTES:,} bytes. Cut it into smaller images, write its "
            "tiles by tile_images, or train on cut(index_tiles(...))."
        )


@dataclass(frozen=True)
class ImageFile:
    """One image of an `ImageStore`."""

    path: str  # Path below the folder of images
    sha256: str  # Digest of the file's bytes
    width: int  # width and height: Size of the image, pixels
    height: int
    # Width and height of the image that is cut, which may be resampled, pixels
    cut_size: tuple[int, int]
    # Where images are normalised: the values that become 0 and white, or the numbers that describe
    # the stains
    value_range: ValueRange | None = None


@dataclass(frozen=True, eq=False)
class ImageStore:
    """Images whose tiles are cut when they are read; a `TileStore` of the local sets."""

    pool: TileIndex  # One run for each image
    field: Field  # The image column
    locations: tuple[str, ...] = hidden(repr=False)  # Folders that hold the images
    cutting: TilingConfig = hidden(repr=False)  # How tiles are cut
    files: tuple[ImageFile, ...] = hidden(repr=False)  # The image of each run
    label_name: str = "label"

    @property
    def images(self) -> tuple[str, ...]:
        """Names of the images, by their numbers in the pool."""
        return tuple(file.path for file in self.files)

    def open(self, node: int) -> TileCutter:
        """Return a reader for the worker on a node."""
        return TileCutter(self, Mirrors.of_node(self.locations, node))

    def describe_reading(self, places: Numbers) -> str:
        """Describe what a worker reads for some tiles."""
        return f"{len(np.unique(self.pool.runs_of(places))):,} images"


class TileCutter(MirrorReader):
    """Cuts tiles of an `ImageStore`, image by image."""

    def __init__(self, store: ImageStore, mirrors: Mirrors) -> None:
        super().__init__(mirrors)
        self._store = store

    def read(self, places: Numbers) -> Iterator[tuple[Numbers, NDArray[Any]]]:
        """Cut tiles; yield those of one image at a time."""
        # A task has one core, unless the environment says otherwise.
        cv2.setNumThreads(1)
        pool = self._store.pool
        ordered = np.sort(places)
        runs = pool.runs_of(ordered)
        for run in np.unique(runs).tolist():
            mine = ordered[runs == run]
            yield mine, self._cut(run, mine - pool.starts[run])

    def _cut(self, run: int, numbers: Numbers) -> NDArray[Any]:
        store, file = self._store, self._store.files[run]
        content = self._mirrors.fetch(ByteRange(file.path, sha256=file.sha256))
        field, cutting = store.field, store.cutting
        angles, x, y = self._places_of(file, int(store.pool.tiles[run]))
        tiles = np.empty((len(numbers), *field.shape), field.dtype)
        with closing(self._prepared(file, content)) as ready:
            if ready.pixels.dtype.name != field.dtype:
                raise ImageError(
                    f"{file.path} has values of {ready.pixels.dtype.name}, the data set "
                    f"{field.dtype}. Convert the images to one type."
                )
            for angle in np.unique(angles[numbers]).tolist():
                rows = np.flatnonzero(angles[numbers] == angle)
                chosen = numbers[rows]
                cut = crop_tile(ready.pixels, cutting.spec, angle, (x[chosen], y[chosen]))
                for row, tile in zip(rows, cut, strict=True):
                    tiles[row] = tile
        return tiles

    def _prepared(self, file: ImageFile, content: bytes) -> PreparedImage:
        store, stream = self._store, io.BytesIO(content)
        return prepare(
            *(stream, file.path, file.path, store.cutting, store.field.shape[2]),
            value_range=file.value_range,
        )

    def _places_of(self, file: ImageFile, tiles: int) -> _Places:
        cutting = self._store.cutting
        (width, height), own = file.cut_size, (file.width, file.height)
        zones = cutting.zones.of(file.path, *own).scaled(width / own[0], height / own[1])
        # Cached, because most images of a data set have the same size.
        find = _find_places if zones else _known_places
        places = find(cutting.spec, width, height, zones if zones else NO_ZONES)
        if len(places[0]) != tiles:
            raise ImageError(
                f"{file.path} gives {len(places[0])} tiles, and {tiles} were counted. Install "
                "the packages of the driver on all hosts."
            )
        return places


def _find_places(spec: TileSpec, width: int, height: int, zones: Zones) -> _Places:
    frames = list(frames_of(spec, width, height, zones))
    angles = [np.full(len(x), frame.angle) for frame, (x, _) in frames]
    return (
        np.concatenate([np.empty(0), *angles]),
        np.concatenate([np.empty(0, np.int64), *(x for _, (x, _) in frames)]),
        np.concatenate([np.empty(0, np.int64), *(y for _, (_, y) in frames)]),
    )


_known_places = lru_cache(maxsize=16)(_find_places)
