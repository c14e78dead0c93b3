import contextlib
import errno
import io
import math
import mmap
import os
import re
import shutil
import sys
import tracemalloc
from pathlib import Path
from types import SimpleNamespace

import cv2
import numpy as np
import pyarrow as pa
import pytest

from distkeras_grid.errors import LocalDiskError, NoSpaceError
from distkeras_grid.feeding import local_file
from distkeras_grid.feeding.delta_encoding import as_differences
from distkeras_grid.feeding.feature_file import FeatureFile
from distkeras_grid.feeding.local_file import local_folder
from distkeras_grid.feeding.row_cache import RowCache
from distkeras_grid.feeding.schema import Field

SHAPE = (5, 4, 1)
LABEL = Field("label", (), "int64")
ENCODERS = {
    "raw": np.ascontiguousarray,
    "difference": as_differences,
    "png": lambda image: cv2.imencode(".png", image)[1],
}


def pixels_of(numbers, shape=SHAPE):
    """Images that differ by the number of their row."""
    return np.stack([np.full(shape, number % 251, np.uint8) for number in numbers])


def hash_of(number):
    """A number of 64 bits, positive or negative."""
    return (number + 1) * 0x9E3779B97F4A7C15 % 2**64 - 2**63


def batch(numbers, encoding="raw", shape=SHAPE):
    pixels = pixels_of(numbers, shape)
    contents = [ENCODERS[encoding](image).tobytes() for image in pixels]
    columns = {
        "row": pa.array(numbers, pa.int64()),
        "hash": pa.array([hash_of(number) for number in numbers], pa.int64()),
        "features_0": pa.array(contents, pa.binary()),
        "label_0": pa.array(numbers),
        "weight": pa.array([number / 2 for number in numbers], pa.float32()),
    }
    return pa.RecordBatch.from_pydict(columns)


def gathered(spool, places):
    """Rows of a spool: features, labels and weights."""
    (block,) = spool.blocks([np.array(places)[np.newaxis]])
    return [x[0] for x in block.x], [y[0] for y in block.y], block.weight[0]


def sealed(batches, field=None, **options):
    spool = RowCache((field or Field("image", SHAPE),), (LABEL,), **options)
    for each in batches:
        spool.append(each)
    spool.seal()
    return spool


@pytest.mark.parametrize("encoding", ENCODERS)
@pytest.mark.parametrize("mapped", [1 << 20, 0], ids=["mapped", "read"])
def test_rows_come_back_by_number_however_they_came(encoding, mapped, tmp_path):
    numbers = np.random.default_rng(0).permutation(np.arange(0, 300, 3)).tolist()
    batches = [batch(numbers[i : i + 7], encoding) for i in range(0, 100, 7)]
    field = Field("image", SHAPE, encoding=encoding)
    with sealed(batches, field, folder=tmp_path, mapped_bytes=mapped) as spool:
        assert len(spool) == 100
        features, labels, found = gathered(spool, [0, 99, 5, 5])
        expected = [0, 297, 15, 15]
        assert np.array_equal(features[0], pixels_of(expected))
        assert labels[0].tolist() == expected
        assert found.tolist() == [number / 2 for number in expected]


@pytest.mark.parametrize(("encoding", "encoded"), [("difference", False), ("png", True)])
def test_values_that_do_not_shrink_are_decoded_as_they_come(encoding, encoded, tmp_path):
    """Kept encoded, they would be written twice."""
    column = batch([3, 0, 8], encoding=encoding).column("features_0")
    file = FeatureFile(Field("image", SHAPE, encoding=encoding), tmp_path, 0)
    file.append(column)
    assert file.encoded is encoded
    file.close()


def test_the_digest_is_that_of_the_rows_in_whatever_order_and_batches_they_come():
    def digest(*batches):
        with sealed(map(batch, batches)) as spool:
            return spool.digest

    rows = list(range(20))
    digests = [digest(rows), digest(rows[::-1]), digest(rows[7:], rows[:7])]
    assert digests == [f"{sum(map(hash_of, rows)) % 2**64:016x}"] * 3
    assert len({digests[0], digest(rows[1:]), digest([*rows[1:], 21]), digest()}) == 4


def test_images_are_decoded_once_if_half_of_the_free_space_is_enough(monkeypatch):
    field = Field("image", SHAPE, encoding="png")
    needed = 10 * 20
    for spare, encoded in ((0, False), (-2, True)):
        usage = shutil.disk_usage(".")._replace(free=local_file.RESERVED_BYTES + 2 * needed + spare)
        with RowCache((field,), (LABEL,)) as spool:
            spool.append(batch(list(range(10)), encoding="png"))
            monkeypatch.setattr(shutil, "disk_usage", lambda _, usage=usage: usage)
            spool.seal()
            monkeypatch.undo()
            assert spool._files["features_0"].encoded is encoded
            (features,), *_ = gathered(spool, [3, 7])
            assert np.array_equal(features, pixels_of([3, 7]))


def test_images_stay_encoded_if_the_space_goes_while_they_are_decoded(monkeypatch):
    def full(self, content):
        raise NoSpaceError("full")

    with RowCache((Field("image", SHAPE, encoding="png"),), (LABEL,)) as spool:
        spool.append(batch([0, 1, 2], encoding="png"))
        monkeypatch.setattr(local_file.LocalFile, "write", full)
        spool.seal()
        assert spool._files["features_0"].encoded
        (features,), *_ = gathered(spool, [2])
        assert np.array_equal(features, pixels_of([2]))


def test_full_disk_is_refused_with_the_arithmetic(monkeypatch, tmp_path):
    with RowCache((Field("image", SHAPE),), (LABEL,), folder=tmp_path) as spool:
        spool.append(batch([0, 1]))
        usage = shutil.disk_usage(".")._replace(free=local_file.RESERVED_BYTES + 59)
        monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
        message = f"{re.escape(str(tmp_path))}.* 60 bytes after 40, with 59 bytes free"
        with pytest.raises(NoSpaceError, match=message):
            spool.append(batch([2, 3, 4]))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this system")
@pytest.mark.parametrize("buffering", [0, -1])
def test_a_write_that_fails_is_a_full_disk_and_is_told_once(tmp_path, buffering):
    """The buffer still holds the bytes when the file is closed."""
    with contextlib.closing(local_file.LocalFile(tmp_path, 1 << 20)) as file:
        file._file.close()
        file._file = open("/dev/full", "wb", buffering=buffering)  # noqa: SIM115
        if buffering:
            file.write(b"0123456789")
        with pytest.raises(
            NoSpaceError, match="0 bytes after 10" if buffering else "10 bytes after 0"
        ):
            file.seal() if buffering else file.write(b"0123456789")


def test_a_disk_that_fails_is_an_error_of_this_host(tmp_path, monkeypatch):
    """Another attempt may have another disk, so it is told from errors of the user's code."""

    def fails(*_):
        raise OSError(errno.EIO, "Input/output error")

    with pytest.raises(LocalDiskError, match="missing"):
        local_file.LocalFile(tmp_path / "missing", 1 << 20)
    with contextlib.closing(local_file.LocalFile(tmp_path, 0)) as file:
        file.write(b"0123")
        file.seal()
        monkeypatch.setattr(os, "preadv", fails)
        with pytest.raises(LocalDiskError, match="Input/output"):
            file.read(0, 4)
    with contextlib.closing(local_file.LocalFile(tmp_path, 0)) as file:
        file._file.close()
        file._file = SimpleNamespace(write=fails, close=lambda: None)
        with pytest.raises(LocalDiskError, match="Input/output"):
            file.write(b"0123")


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
def test_a_limit_of_open_files_is_no_error_of_the_disk(tmp_path, monkeypatch, number):
    """It would be reached again, and nothing is wrong with the disk."""

    def fails(**_):
        raise OSError(number, "Too many open files")

    monkeypatch.setattr(local_file.tempfile, "TemporaryFile", fails)
    with pytest.raises(OSError, match="Too many open files"):
        local_file.LocalFile(tmp_path, 1 << 20)


def test_file_that_lost_bytes_is_an_error(tmp_path):
    with sealed([batch([0, 1])], folder=tmp_path, mapped_bytes=0) as spool:
        spool._files["features_0"]._file._file.truncate(30)
        with pytest.raises(LocalDiskError, match="10 of 20 bytes at position 20 of 40"):
            gathered(spool, [1])


def test_nothing_lies_in_the_folder(tmp_path):
    with sealed([batch([0, 1])], folder=tmp_path) as spool:
        assert list(tmp_path.iterdir()) == []
        spool.close()
        spool.close()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("mapped", [True, False])
def test_large_files_do_not_count_as_memory(mapped, tmp_path):
    field = Field("image", (256, 256, 1))
    batches = [batch([number], shape=field.shape) for number in range(100)]
    size = 100 * field.nbytes
    before = mapped_bytes()  # Of others in this process.
    with sealed(batches, field, folder=tmp_path, mapped_bytes=size - (not mapped)) as spool:
        order = np.random.default_rng(0).permutation(100)
        (features,), *_ = gathered(spool, order)
        assert np.array_equal(features[:, 7, 7, 0], order)
        # The labels are a small file.
        assert mapped_bytes() - before == (size if mapped else 0) + mmap.PAGESIZE


def mapped_bytes():
    """Resident pages of files without a name in this process."""
    sections = re.split(r"\n(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text())
    sizes = [
        int(re.search(r"Rss: +(\d+) kB", section)[1])
        for section in sections
        if "(deleted)" in section.split("\n")[0]
    ]
    return sum(sizes) * 1024


def test_folder_is_sparks_local_directory(monkeypatch, tmp_path):
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{tmp_path},/elsewhere")
    assert local_folder() == tmp_path
    monkeypatch.setenv("SPARK_LOCAL_DIRS", os.fspath(tmp_path / "gone"))
    assert local_folder() != tmp_path / "gone"
    assert local_folder().is_dir()


def test_batches_are_not_kept_in_memory():
    # As Spark sends them: all columns of a batch are parts of what was read at once.
    rows, batches = 1000, 20
    stream = io.BytesIO()
    with pa.ipc.new_stream(stream, batch([0]).schema) as writer:
        for start in range(0, rows * batches, rows):
            writer.write_batch(batch(range(start, start + rows)))
    stream.seek(0)
    pixels = rows * batches * math.prod(SHAPE)
    labels = rows * batches * 24
    with RowCache((Field("image", SHAPE),), (LABEL,)) as spool, measured_memory() as kept:
        for each in pa.ipc.open_stream(stream):
            spool.append(each)
        del each
        assert kept() < labels + 0.5 * pixels


@contextlib.contextmanager
def measured_memory():
    """Give a function that returns the bytes of Python objects and arrays that were added."""
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    try:
        yield lambda: tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
