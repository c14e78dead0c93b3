"""Reads pieces of files from any mirror that has them, and verifies them before use."""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

from distkeras_grid.errors import StorageError
from distkeras_grid.stores.disk_cache import DiskCache
from distkeras_grid.stores.locations import Location, open_location, scheme_of
from distkeras_grid.stores.rendezvous import order_mirrors
from distkeras_grid.webhdfs.addresses import shown

# How long a mirror that has failed is asked last [s]. A silent one costs as much as
# `locations.SILENCE_SECONDS` each time it is asked.
AVOIDED_SECONDS = 600.0
# How often all mirrors are asked before a read fails: a connection may have been idle for too
# long, and a server may be starting.
ROUNDS = 2


@dataclass(frozen=True)
class ByteRange:
    """Some bytes of a file."""

    path: str  # Path of the file below the mirror's folder
    start: int  # The first byte
    stop: int  # One more than the last byte
    sha256: str = ""  # SHA-256 of the bytes, in hexadecimal; empty if it is not known

    @property
    def name(self) -> str:
        """Name of the piece, unique among all pieces."""
        return f"{self.path}:{self.start}"

    def problem(self, content: bytes) -> str:
        """Return what is wrong with bytes that were read as this piece; empty if nothing is."""
        if len(content) != self.stop - self.start:
            return f"{len(content)} of {self.stop - self.start} bytes came"
        if self.sha256 and hashlib.sha256(content).hexdigest() != self.sha256:
            return "its SHA-256 is not that of the data set"
        return ""


class Mirrors:
    """Reads pieces for one node.

    `clock`: returns the time [s].
    `bytes_read`: bytes that were read and used, by location (without passwords).
    `failures`: number of reads that failed or gave wrong bytes, by location.
    """

    def __init__(
        self,
        locations: Sequence[str],
        node: int = 0,
        cache: DiskCache | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._locations, self._node, self._clock = tuple(locations), node, clock
        self._cache = cache
        self._open: dict[str, Location] = {}
        # Until when those that failed in their last read are asked last
        self._avoided: dict[str, float] = {}
        self.bytes_read = Counter[str]()
        self.failures = Counter[str]()

    @classmethod
    def of_node(cls, locations: Sequence[str], node: int) -> Self:
        """Return the mirrors of a worker, which keeps what does not come from its own disks."""
        far = any(scheme_of(location) != "file" for location in locations)
        return cls(locations, node, DiskCache() if far else None)

    def fetch(self, piece: ByteRange) -> bytes:
        """Return the bytes of a range: from the cache, or the first mirror that has them."""
        content = None if self._cache is None else self._cache.get(piece.name)
        if content is None:
            content = self._fetch(piece)
            if self._cache is not None:
                self._cache.put(piece.name, content)
        return content

    def _fetch(self, piece: ByteRange) -> bytes:
        problems: dict[str, str] = {}
        for _ in range(ROUNDS):
            for location in self._order(piece):
                try:
                    content = self._at(location).read(piece.path, piece.start, piece.stop)
                    problem = piece.problem(content)
                except StorageError as error:
                    problem = str(error)
                else:
                    if not problem:
                        self.bytes_read[shown(location)] += len(content)
                        self._avoided.pop(location, None)
                        return content
                problems[shown(location)] = problem
                self._note_failure(location)
        reasons = "; ".join(f"{location}: {problem}" for location, problem in problems.items())
        raise StorageError(
            f"{piece.path} was asked of {len(problems)} locations, {ROUNDS} times "
            f"each, and none gave it. {reasons} Look at these servers, or name other mirrors."
        )

    def close(self) -> None:
        """Close all connections. A second call has no effect."""
        for location in self._open.values():
            location.close()
        self._open.clear()
        if self._cache is not None:
            self._cache.close()

    def _order(self, piece: ByteRange) -> list[str]:
        now = self._clock()
        order = order_mirrors(self._locations, self._node, piece.name)
        return sorted(order, key=lambda location: now < self._avoided.get(location, now))

    def _at(self, location: str) -> Location:
        if location not in self._open:
            self._open[location] = open_location(location)
        return self._open[location]

    def _note_failure(self, location: str) -> None:
        self.failures[shown(location)] += 1
        self._avoided[location] = self._clock() + AVOIDED_SECONDS
        self._open.pop(location).close()


class MirrorReader:
    """Reads tiles from mirrors; a base of readers."""

    def __init__(self, mirrors: Mirrors) -> None:
        self._mirrors = mirrors
        self.bytes_read = mirrors.bytes_read
        self.failures = mirrors.failures

    def close(self) -> None:
        """Close connections. A second call has no effect."""
        self._mirrors.close()
