"""What workers must know about a data set to read any of its tiles by number."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from numpy.typing import NDArray

from distkeras_grid.feeding.schema import Field
from distkeras_grid.local_sets.sampler import TileSampler
from distkeras_grid.local_sets.tile_index import Numbers, TileIndex


class TileReader(Protocol):
    """Reads tiles on one node."""

    # bytes_read and failures: Bytes received and number of failed reads, by location, since the
    # reader was opened
    bytes_read: Counter[str]
    failures: Counter[str]

    def read(self, places: Numbers) -> Iterator[tuple[Numbers, NDArray[Any]]]:
        """Read tiles, in the order that is fastest to read.

        `places`: tile numbers, all different, shape ``(n,)``, int64.
        """
        ...

    def close(self) -> None:
        """Close connections. A second call has no effect."""
        ...


class TileStore(Protocol):
    """A data set from which local sets are read: a value that travels to the workers."""

    @property
    def pool(self) -> TileIndex:
        """All tiles."""
        ...

    @property
    def field(self) -> Field:
        """The feature: shape, type and scaling of a tile."""
        ...

    def open(self, node: int) -> TileReader:
        """Return a reader for a node."""
        ...

    def describe_reading(self, places: Numbers) -> str:
        """Return what a worker reads for some tiles, such as ``"row groups of 12.5 MB"``."""
        ...


@dataclass(frozen=True)
class LocalPlan:
    """What a worker needs in place of rows: where the tiles are, and how sets are drawn."""

    store: TileStore = field(repr=False)  # The data set
    drawing: TileSampler = field(repr=False)  # The local sets of the run
