"""The checksum against what the daemons of Hadoop 3.5.0 told of the same bytes."""

from __future__ import annotations

import pytest

from distkeras_grid.webhdfs.checksums import (
    ChecksumLayout,
    FileChecksum,
    FileDigest,
    parse_checksum,
)

MEBIBYTE = 1 << 20

# Algorithm and numbers of an answer.
EMPTY = ("0MD5-of-0CRC32", "000000000000000000000000")
ONE_BLOCK = ("0MD5-of-512CRC32C", "000002000000000000000000")
# Blocks of 1 MiB: two, three and five, whose MD5s fill a buffer of Java in part.
BLOCKS = ("2048MD5-of-512CRC32C", "000002000000000000000800")
# Bytes, the length of their period, and answer of a DataNode.
TOLD = [
    (0, 256, EMPTY, "70bc8f4b72a86921468bf8e8441dce51"),
    (1, 256, ONE_BLOCK, "dc236201841049096ad31b6213203a90"),
    (511, 256, ONE_BLOCK, "c7e23c23384cb0f630d0ab392efed3f9"),
    (512, 256, ONE_BLOCK, "7cad4fca9831d70ac9147f15c85ca7a1"),
    (513, 256, ONE_BLOCK, "4d983d342d48dcbd7de76a8868faf739"),
    (3 * MEBIBYTE, 256, ONE_BLOCK, "8b027840f0ef726abb101179e7edd039"),
    (MEBIBYTE + 77777, 251, BLOCKS, "7cd54584de3df786517606b10ae392f9"),
    (2 * MEBIBYTE + 77777, 251, BLOCKS, "8d542961d6ec10ab9ca1a148c3d553ab"),
    (4 * MEBIBYTE + 77777, 251, BLOCKS, "8640ed72792e002f37dba9418b8b77f3"),
]


def content(size: int, period: int) -> bytes:
    return (bytes(range(period)) * (size // period + 1))[:size]


def told(algorithm: str, numbers: str, md5: str) -> FileChecksum:
    # WebHDFS sends four bytes more than it says.
    checksum = parse_checksum(f"MD5-of-{algorithm}", numbers + md5 + "00000000")
    assert checksum is not None
    return checksum


@pytest.mark.parametrize(("size", "period", "kind", "md5"), TOLD)
@pytest.mark.parametrize("piece", [MEBIBYTE, 1000, 511])
def test_it_is_what_hdfs_computes_however_the_bytes_come(
    size: int, period: int, kind: tuple[str, str], md5: str, piece: int
) -> None:
    checksum = told(*kind, md5)
    digest = FileDigest(checksum.layout)
    whole = content(size, period)
    for start in range(0, size, piece):
        digest.update(whole[start : start + piece])
    assert digest.size == size
    assert digest.digest().hex() == checksum.digest.hex() == md5


def test_the_answer_tells_the_layout() -> None:
    checksum = told(*BLOCKS, "ab" * 16)
    assert checksum.layout == ChecksumLayout("CRC32C", 512, MEBIBYTE)
    assert told("0MD5-of-512CRC32", "00000200" + "0" * 16, "ab" * 16).layout.crc == "CRC32"


@pytest.mark.parametrize("algorithm", ["COMPOSITE-CRC32C", "SHA-256"])
def test_another_algorithm_is_none(algorithm: str) -> None:
    assert parse_checksum(algorithm, "00" * 32) is None


@pytest.mark.parametrize("digits", ["", "00", "zz" * 28, "00" * 27])
def test_digits_that_are_no_checksum_are_refused(digits: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  of bytes.fromhex, too
        parse_checksum("MD5-of-0MD5-of-512CRC32C", digits)


@pytest.mark.parametrize(
    ("layout", "size", "told"),
    [
        (ChecksumLayout(), 128 << 20, ChecksumLayout(block_bytes=0)),
        (ChecksumLayout(), (128 << 20) + 1, ChecksumLayout()),
        (ChecksumLayout(block_bytes=0), 1 << 40, ChecksumLayout(block_bytes=0)),
        (ChecksumLayout(), 0, ChecksumLayout("CRC32", 0, 0)),
    ],
)
def test_a_layout_is_as_hdfs_tells_it_of_a_size(
    layout: ChecksumLayout, size: int, told: ChecksumLayout
) -> None:
    assert layout.of(size) == told


def test_a_changed_byte_and_another_polynomial_change_it() -> None:
    digests = set()
    for layout in (ChecksumLayout(), ChecksumLayout("CRC32")):
        for whole in (b"stone", b"store"):
            digest = FileDigest(layout)
            digest.update(whole)
            digests.add(digest.digest())
    assert len(digests) == 4
