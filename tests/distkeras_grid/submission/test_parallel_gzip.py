"""A stream that every reader of gzip takes, whatever the number of threads."""

from __future__ import annotations

import gzip
import io
import shutil
import subprocess
import zlib
from pathlib import Path

import numpy as np
import pytest

from distkeras_grid.submission.parallel_gzip import BLOCK, ParallelGzip


def compressed(pieces: list[bytes], threads: int | None = None, level: int = 1) -> bytes:
    target = io.BytesIO()
    with ParallelGzip(target, level, threads) as stream:
        for piece in pieces:
            assert stream.write(piece) == len(piece)
        assert stream.tell() == sum(map(len, pieces))
    return target.getvalue()


def pieces_of(*sizes: int) -> list[bytes]:
    rng = np.random.default_rng(len(sizes))
    return [rng.integers(0, 4, size, dtype=np.uint8).tobytes() for size in sizes]


@pytest.mark.parametrize(
    "sizes",
    [(), (0,), (1,), (BLOCK,), (BLOCK - 1, 2), (3 * BLOCK + 5, 0, 7), (BLOCK // 3,) * 10],
)
def test_one_member_with_its_sum_and_size_of_whatever_pieces(sizes: tuple[int, ...]) -> None:
    content = b"".join(pieces_of(*sizes))
    packed = compressed(pieces_of(*sizes))
    assert gzip.decompress(packed) == content
    # Java's reader may stop behind the first member: there is no second.
    reader = zlib.decompressobj(zlib.MAX_WBITS | 16)
    assert reader.decompress(packed) == content
    assert reader.eof
    assert reader.unused_data == b""


def test_the_bytes_depend_on_neither_threads_nor_pieces() -> None:
    content = b"".join(pieces_of(5 * BLOCK + 9))
    told = {compressed([content], threads) for threads in (1, 2, 7)}
    told.add(compressed([content[: BLOCK - 3], content[BLOCK - 3 :]]))
    assert len(told) == 1


def test_the_command_takes_it(tmp_path: Path) -> None:
    if shutil.which("gzip") is None:
        pytest.skip("there is no gzip here")
    (tmp_path / "a.gz").write_bytes(compressed(pieces_of(2 * BLOCK + 1)))
    subprocess.run(["gzip", "--test", tmp_path / "a.gz"], check=True, timeout=60)


def test_blocks_cost_little_and_memory_is_bounded() -> None:
    content = b"".join(pieces_of(9 * BLOCK))
    assert len(compressed([content])) < 1.001 * len(gzip.compress(content, 1))
    stream = ParallelGzip(io.BytesIO(), 1, threads=2)
    with stream:
        for _ in range(40):
            stream.write(bytes(BLOCK))
            assert len(stream._running) <= 4


class Full(io.BytesIO):
    """A disk with room for the first bytes only."""

    def write(self, content: bytes) -> int:  # type: ignore[override]
        if self.tell() + len(content) > 2 * BLOCK:
            raise OSError(28, "No space left on device")
        return super().write(content)


def test_a_full_disk_ends_it_with_its_own_error() -> None:
    target = Full()
    with pytest.raises(OSError, match="No space left"), ParallelGzip(target, 1) as stream:
        stream.write(np.random.default_rng(0).bytes(20 * BLOCK))
    # No end was written: a reader sees that it is cut.
    with pytest.raises(EOFError):
        gzip.decompress(target.getvalue())
