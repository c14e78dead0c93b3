"""From microscopy images to data sets of tiles: geometry and pixels here, Spark stages above."""

from data_prep.geometry import TileSpec, count_tiles
from data_prep.index import cut, index_tiles
from data_prep.lazy import tile_field
from data_prep.local_images import catalogue_images
from data_prep.settings import TilingSettings
from data_prep.tiles import Tile, iter_tiles
from data_prep.update import Update, plan_tiles, tile_images, update_tiles

__all__ = [
    "Tile",
    "TileSpec",
    "TilingSettings",
    "Update",
    "catalogue_images",
    "count_tiles",
    "cut",
    "index_tiles",
    "iter_tiles",
    "plan_tiles",
    "tile_field",
    "tile_images",
    "update_tiles",
]
