"""Whether a JPEG stream holds all of its pixels.

libjpeg fills what is missing with gray and only warns, and the libraries above it drop the warning.
`simplejpeg` makes it an error. Damage that leaves a valid code cannot be found: JPEG has no
checksum.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import simplejpeg

# TIFF's numbers of compressions that store JPEG streams.
COMPRESSIONS = (6, 7, 33007, 34892)
START, END = b"\xff\xd8", b"\xff\xd9"
SCAN, LOSSLESS, LAST = 0xDA, 0xC3, 0xD9
FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
PROGRESSIVE = (0xC2, 0xC6, 0xCA, 0xCE)
# 0xFF00 is a byte of the code; the other markers left out have neither a length nor content.
NEXT_SEGMENT = re.compile(rb"\xff[\x02-\xcf\xd8-\xfe]")
COEFFICIENTS = 64


def joined(content: bytes, tables: bytes | None, header: bytes | None) -> bytes:
    """Return a whole stream from a piece of a TIFF, whose tables or header can be kept apart."""
    if header:
        return header + content + END
    if tables:
        return tables.removesuffix(END) + content.removeprefix(START)
    return content


def check_whole(stream: bytes) -> None:
    """Check that all data of a picture are there."""
    patched = bytearray(stream)
    # To a gray image of an eighth of the size: all of the code is read, and little else computed.
    colours, size = "GRAY", {"min_height": 1, "min_width": 1, "min_factor": 8}
    # By component: the bits of each coefficient that are still to come.
    rest: dict[int, list[int]] = {}
    is_progressive = False
    for marker, at, body in _segments(stream):
        if marker in FRAMES:
            # Other precisions have the same code, but libjpeg decodes 8 bits only.
            patched[at] = 8
            rest = {body[6 + 3 * i]: [1] * COEFFICIENTS for i in range(body[5])}
            is_progressive = marker in PROGRESSIVE
            if marker == LOSSLESS:  # neither converted nor reduced
                colours, size = "RGB" if len(rest) == 3 else "GRAY", {}
        elif marker == SCAN:
            count = body[0]
            first, last, bits = body[1 + 2 * count : 4 + 2 * count]
            if not is_progressive:
                first, last, bits = 0, COEFFICIENTS - 1, 0
            for component in body[1 : 1 + 2 * count : 2]:
                rest[component][first : last + 1] = [bits & 15] * (last + 1 - first)
    simplejpeg.decode_jpeg(bytes(patched) + END, colours, strict=True, **size)
    if any(map(any, rest.values())):
        raise ValueError("JPEG scans are missing")


def _segments(stream: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Yield marker, place and content of each segment up to the end of the picture."""
    at = stream.find(START) + 2
    while match := NEXT_SEGMENT.search(stream, at):
        marker, start = stream[match.start() + 1], match.end() + 2
        if marker == LAST:
            return
        end = match.end() + int.from_bytes(stream[match.end() : start], "big")
        yield marker, start, stream[start:end]
        at = end
