"""What a sandbox leaves behind when it stops, and how much it is."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from distkeras_grid.progress import format_bytes


@dataclass(frozen=True)
class Leftovers:
    """What stays when the daemons have ended.

    Parameters
    ----------
    files : mapping of str to int
        Bytes on the disk of each folder and file of the sandbox, by name.
    staged : mapping of str to int
        What killed applications have left in HDFS, a part of `files`: bytes of one copy, by path.
    unknown : str, default ""
        Why nobody can tell what they have left there.
    """

    files: Mapping[str, int]
    staged: Mapping[str, int]
    unknown: str = ""

    def lines(self) -> Iterator[str]:
        """Yield it as text, what is largest first.

        Examples
        --------
        >>> list(Leftovers({"hdfs": 3_000_000, "logs": 12_000}, {}).lines())
        ['  3.0 MB  hdfs', '   12 kB  logs']
        """
        yield from _table(self.files)
        if self.staged:
            yield "of this, in HDFS, from applications that were killed:"
            yield from _table(self.staged)
        if self.unknown:
            yield f"what killed applications left in HDFS is not known: {self.unknown}"


def sizes(paths: Iterable[Path]) -> dict[str, int]:
    """Return the bytes on the disk of files and folders by name; without missing and empty ones.

    Parameters
    ----------
    paths : iterable of Path
    """
    found = {path.name: _size(path) for path in paths}
    return {name: size for name, size in found.items() if size}


def _size(path: Path) -> int:
    if not path.is_dir():
        return _on_disk(path)
    return sum(_on_disk(Path(folder, name)) for folder, _, names in os.walk(path) for name in names)


def _on_disk(path: Path) -> int:
    """Return the bytes of a file without its holes: HDFS reserves space for its journal."""
    try:
        return path.lstat().st_blocks * 512
    except FileNotFoundError:
        return 0


def _table(found: Mapping[str, int]) -> Iterator[str]:
    for name, size in sorted(found.items(), key=lambda each: -each[1]):
        yield f"{format_bytes(size):>8}  {name}"
