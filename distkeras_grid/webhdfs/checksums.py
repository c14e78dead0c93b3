"""The checksum that HDFS keeps of a file, computed from its bytes.

HDFS keeps a CRC of every 512 bytes. The checksum of a file is the MD5 of the MD5s, one a block, of
those CRCs; DataNodes compute it without reading the file. So two sides can compare a file of any
size by 16 bytes, if they know three numbers: the kind of CRC, bytes per CRC, and bytes per block.
"""

from __future__ import annotations

import hashlib
import re
import struct
import zlib
from dataclasses import dataclass, replace

# The MD5s of the blocks lie in a buffer of Java that starts with 32 bytes and doubles; its unused
# rest, zeros, is part of what Hadoop digests.
SMALLEST_BUFFER = 32

_ALGORITHM = re.compile(r"MD5-of-\d+MD5-of-\d+(CRC32C?)")


@dataclass(frozen=True, slots=True)
class ChecksumLayout:
    """The parameters of a file's checksum, beside its bytes."""

    crc: str = "CRC32C"  # The polynomial
    bytes_per_crc: int = 512  # As in ``dfs.bytes-per-checksum``; 0 for an empty file
    block_bytes: int = 128 << 20  # A multiple of `bytes_per_crc`; 0 for a file of one block

    def of(self, size: int) -> ChecksumLayout:
        """Return the layout as HDFS reports it of a file of `size` bytes."""
        if size == 0:
            return ChecksumLayout("CRC32", 0, 0)
        return replace(self, block_bytes=0) if size <= self.block_bytes else self


@dataclass(frozen=True, slots=True)
class FileChecksum:
    """A checksum as HDFS reports it."""

    layout: ChecksumLayout  # How it was computed
    digest: bytes


def parse_checksum(algorithm: str, digits: str) -> FileChecksum | None:
    """Return the checksum in an answer to ``GETFILECHECKSUM``; None for another algorithm.

    `digits`: bytes per CRC (4), CRCs per block (8, 0 for one block), MD5 (16), in hexadecimal.

    Examples
    --------
    >>> parse_checksum("MD5-of-2048MD5-of-512CRC32C",
    ...                "00000200" + "0000000000000800" + "ab" * 16).layout
    ChecksumLayout(crc='CRC32C', bytes_per_crc=512, block_bytes=1048576)
    """
    match = _ALGORITHM.fullmatch(algorithm)
    if match is None:
        return None
    content = bytes.fromhex(digits)
    if len(content) < 28:
        raise ValueError(f"a checksum has {len(content)} bytes in place of 28")
    bytes_per_crc, crcs_per_block, digest = struct.unpack(">iq16s", content[:28])
    layout = ChecksumLayout(match[1], bytes_per_crc, crcs_per_block * bytes_per_crc)
    return FileChecksum(layout, digest)


class FileDigest:
    """Computes the checksum of a file whose bytes come in pieces.

    Examples
    --------
    >>> digest = FileDigest(ChecksumLayout())
    >>> digest.update(b"x")
    >>> digest.size, len(digest.digest())
    (1, 16)
    """

    def __init__(self, layout: ChecksumLayout) -> None:
        from crc32c import crc32c

        self.layout = layout
        self.size = 0
        self._crc = crc32c if layout.crc == "CRC32C" else zlib.crc32
        self._step = layout.bytes_per_crc or 512
        self._rest = b""
        self._block = hashlib.md5(usedforsecurity=False)
        self._in_block = 0
        self._blocks = b""

    def update(self, content: bytes) -> None:
        """Add the next bytes."""
        self.size += len(content)
        content = self._rest + content if self._rest else content
        whole = len(content) - len(content) % self._step
        self._take(memoryview(content)[:whole])
        self._rest = content[whole:]

    def digest(self) -> bytes:
        """Return the 16 bytes; nothing may be added afterwards."""
        self._take(memoryview(self._rest))
        self._rest = b""
        if self._in_block:
            self._end_block()
        buffer = SMALLEST_BUFFER
        while buffer < len(self._blocks):
            buffer *= 2
        return hashlib.md5(self._blocks.ljust(buffer, b"\0"), usedforsecurity=False).digest()

    def _take(self, content: memoryview) -> None:
        """Take bytes that are cut as the CRCs are, and end blocks where they end."""
        while content:
            left = self.layout.block_bytes - self._in_block if self.layout.block_bytes else None
            piece, content = content[:left], content[left:] if left else content[:0]
            step = self._step
            values = [self._crc(piece[at : at + step]) for at in range(0, len(piece), step)]
            self._block.update(struct.pack(f">{len(values)}I", *values))
            self._in_block += len(piece)
            if self._in_block == self.layout.block_bytes:
                self._end_block()

    def _end_block(self) -> None:
        self._blocks += self._block.digest()
        self._block, self._in_block = hashlib.md5(usedforsecurity=False), 0
