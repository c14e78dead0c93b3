"""How tiles are made and stored: everything in which the tiles of two data sets can differ."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

from data_prep.geometry.filters import Condition
from data_prep.geometry.grid import TileSpec
from data_prep.geometry.regions import ZoneRules
from data_prep.geometry.tiler import Tile
from data_prep.images.intensity import Normalization
from data_prep.images.open_image import MAX_PIXELS
from data_prep.images.plane_selection import PlaneSelector

# Bit depths of cameras; the measured depth is rounded up to one of them.
DEPTHS = (8, 10, 12, 14, 16)


@dataclass(frozen=True)
class TilingConfig:
    """How tiles are made and stored."""

    spec: TileSpec
    encoding: str
    quality: int  # Quality of JPEG, 1 to 100
    channels: int | None  # Number of channels to convert to; None keeps those of the image
    choice: PlaneSelector  # Which image to take from files that hold several
    bits: int | None = None  # Significant bits of 16-bit values; None: as many as the images need
    # Side of a pixel to which images are resampled before they are cut, micrometres
    pixel_size: float | None = None
    # Side of a pixel of all images, micrometres; replaces what their files state
    source_pixel_size: float | None = None
    zones: ZoneRules = field(default_factory=ZoneRules)  # Zones that tiles keep off
    root: str = ""  # The input folder, as Spark names it
    # Whether fingerprints, which find pictures of the same place, are computed, too
    fingerprints: bool = False
    max_pixels: int = MAX_PIXELS  # Larger images that can only be decoded as a whole are refused
    normalising: Normalization | None = (
        None  # How the values of each image are brought to one range
    )
    keep: tuple[Condition, ...] = ()  # Conditions that tiles must meet; other tiles are dropped

    def path_of(self, uri: str) -> str:
        """Return the path of an image below the input folder."""
        # If the input is a single file, it has no path below the input.
        return uri.removeprefix(self.root.rstrip("/")).lstrip("/") or uri

    def tile_id(self, sha256: str, channels: int, tile: Tile) -> str:
        """Return the identity of a tile: the same pixels of the same file, stored in the same way.

        `sha256`: digest of the bytes of the image file.
        """
        spec, choice = self.spec, self.choice
        parts = (
            *(sha256, choice.page, choice.channel, choice.z),
            *(tile.angle, tile.x, tile.y, tile.original),
            *(spec.tile, spec.stride, spec.mode, spec.interpolation, spec.edge),
            *(self.pixel_size, self.source_pixel_size if self.pixel_size else None),
            *(channels, self.encoding, self.quality if self.encoding == "jpeg" else None),
            # Without conditions the identity is the one from before there were conditions.
            *((self.normalising,) if self.normalising else ()),
        )
        return hashlib.sha256("|".join(map(str, parts)).encode()).hexdigest()[:32]


def significant_bits(highest: int, stated: int | None) -> int:
    """Return the significant bits of an image's values.

    Examples
    --------
    >>> significant_bits(3900, None), significant_bits(900, 12), significant_bits(5000, 12)
    (12, 12, 14)
    """
    if stated is not None and highest < 1 << stated:
        return stated
    return next(depth for depth in DEPTHS if highest < 1 << depth)
