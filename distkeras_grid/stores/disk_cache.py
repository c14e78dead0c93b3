"""Pieces that a node has read before, on its local disk, so that they are read once."""

from __future__ import annotations

from pathlib import Path

from distkeras_grid.errors import NoSpaceError
from distkeras_grid.feeding.local_file import LocalFile, local_folder

# Share of the disk's free space that one node uses. A host may have several nodes.
SHARE = 4


class DiskCache:
    """Keeps pieces, by name, in a file without a name that ends with the process.

    The first pieces stay. Draws are random, so recently used pieces are no more likely to be needed
    than others.

    `most_bytes`: most bytes to keep; by default a quarter of the free space.
    """

    def __init__(self, folder: Path | None = None, most_bytes: int | None = None) -> None:
        self._file = LocalFile(folder or local_folder(), mapped_bytes=0)
        self._left = self._file.free_bytes // SHARE if most_bytes is None else most_bytes
        self._places: dict[str, tuple[int, int]] = {}
        self._end = 0

    def get(self, name: str) -> bytes | None:
        """Return a piece; None if it is not kept."""
        place = self._places.get(name)
        return None if place is None else bytes(self._file.read(*place))

    def put(self, name: str, content: bytes) -> None:
        """Keep a piece if there is room for it."""
        if name in self._places or len(content) > self._left:
            return
        try:
            self._file.write(content)
            self._file.seal()
        except NoSpaceError:
            # Other programs have used up the space. Nothing is lost: the piece is read again.
            self._left = 0
            return
        self._places[name] = self._end, self._end + len(content)
        self._end += len(content)
        self._left -= len(content)

    def close(self) -> None:
        """Delete the file. A second call has no effect."""
        self._file.close()
