"""Fingerprints in a temporary file: those of 100,000 images take 0.7 GB."""

from __future__ import annotations

import copy
import os
import tempfile
import weakref
from collections.abc import Iterable, Iterator, Mapping

from distkeras_grid.errors import StorageError


class FingerprintFile(Mapping[str, bytes]):
    """A mapping of names to fingerprints, of which the memory holds the names only.

    The file has no name, and lies in the directory for temporary files (``TMPDIR``).

    Examples
    --------
    >>> prints = FingerprintFile()
    >>> prints.add("a", b"fingerprint")
    >>> prints["a"], len(prints)
    (b'fingerprint', 1)
    """

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(prefix="dkg-")  # noqa: SIM115 - closed below
        weakref.finalize(self, self._file.close)
        self._places: dict[str, tuple[int, int]] = {}
        self._end = 0
        # What closes the file; of a subset, the whole.
        self._whole: FingerprintFile | None = None

    def add(self, name: str, content: bytes) -> None:
        """Add a fingerprint; a name that is there keeps the one that it has."""
        if name in self._places:
            return
        done = 0
        try:
            while done < len(content):
                done += os.pwrite(self._file.fileno(), content[done:], self._end + done)
        except OSError as error:
            raise StorageError(
                f"Fingerprints of images cannot be written to {tempfile.gettempdir()}: {error}. "
                "Make room, or name another directory in TMPDIR."
            ) from error
        self._places[name] = (self._end, len(content))
        self._end += len(content)

    def __getitem__(self, name: str) -> bytes:
        start, length = self._places[name]
        return os.pread(self._file.fileno(), length, start)

    def subset(self, names: Iterable[str]) -> FingerprintFile:
        """Return the fingerprints of some names, in the same file."""
        part = copy.copy(self)
        part._whole, part._places = self, {name: self._places[name] for name in names}
        return part

    def __contains__(self, name: object) -> bool:
        return name in self._places

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)
