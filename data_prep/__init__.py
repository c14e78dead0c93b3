"""From microscopy images to data sets of tiles: geometry and pixels here, Spark stages above."""

from data_prep.dataset.settings import TilingSettings
from data_prep.dataset.update import UpdateResult, plan_tiles, tile_images, update_tiles
from data_prep.geometry.grid import TileSpec
from data_prep.geometry.tile_layout import count_tiles
from data_prep.geometry.tiler import Tile, iter_tiles
from data_prep.on_the_fly.tile_index import cut, index_tiles

__all__ = [
    "Tile",
    "TileSpec",
    "TilingSettings",
    "UpdateResult",
    "count_tiles",
    "cut",
    "index_tiles",
    "iter_tiles",
    "plan_tiles",
    "tile_images",
    "update_tiles",
]
