"""Each unit of work in the task that the plan gave it to."""

from __future__ import annotations

import hashlib
from collections import Counter
from contextlib import ExitStack
from dataclasses import replace
from io import BufferedReader, BytesIO

import cv2
import numpy as np
import pyarrow as pa
import pytest
import tifffile
from PIL import Image

from data_prep import TileSpec, iter_tiles
from data_prep.dataset.schema import image_field
from data_prep.geometry.filters import parse_filter
from data_prep.geometry.regions import ZoneRules
from data_prep.geometry.tiling_config import TilingConfig
from data_prep.images import file_access, preprocess
from data_prep.images.content_hash import pixel_digest
from data_prep.images.crash_isolation import IsolationPolicy
from data_prep.images.file_access import FileOpener, OpenFile
from data_prep.images.intensity import count_values, normalise, parse_normalising
from data_prep.images.open_image import decode_image
from data_prep.images.plane_selection import PlaneSelector
from data_prep.spark.passes import (
    ImageScan,
    TileMeasure,
    cutter,
    encode_record,
    inspect_image,
    tile_frame,
)
from data_prep.spark.scan import (
    Reader,
    measure_files,
    one_image_a_batch,
    records_of,
    run_in_batches,
    scan_task,
)
from distkeras_grid.dataset.manifest import TILED, ImageRecord
from distkeras_grid.errors import ImageError, UnreadableImageError
from distkeras_grid.feeding.schema import Field
from tests.data_prep.bad_sector import open_bad_sector
from tests.data_prep.counting import Counting

SPEC = TileSpec(16, angles=[0, 90])
ANY = TilingConfig(SPEC, "raw", 90, None, PlaneSelector())
CUTTING = replace(ANY, channels=1)


def planned(path):
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    record = ImageRecord(path.name, TILED, 8, sha256=sha256, label="a", split="train")
    return record, ImageScan(f"file:{path}", sha256, 24, 24, 1, "uint8", 256.0, None, tiles=8)


def look_at(uri, content, cutting, **more):
    return inspect_image(uri, OpenFile.of(content), cutting, **more)


def scanned(cutting, rows, opening=None, *isolation):
    """What a task of the first pass finds in files."""
    task = scan_task(TileMeasure(cutting), opening or FileOpener("file"), *isolation)
    batches = task(iter([pa.RecordBatch.from_pylist(rows)]))
    return [each for batch in batches for each in records_of(batch, ImageScan)]


def png(pixels):
    return cv2.imencode(".png", pixels)[1].tobytes()


def test_significant_bits_are_measured_and_checked():
    deep = np.random.default_rng(0).integers(0, 4096, (24, 24), dtype=np.uint16)
    found = look_at("a.png", png(deep), ANY)
    assert (found.error, found.dtype, found.bits) == (None, "uint16", 12)
    assert look_at("a.png", png(deep), replace(ANY, bits=14)).bits == 14
    assert look_at("a.png", png(deep), replace(ANY, bits=10)).error
    assert look_at("a.png", png((deep >> 4).astype(np.uint8)), ANY).bits == 8


def test_a_look_tells_what_a_picture_shows_where_that_is_asked_for(samples):
    content = sorted(samples.glob("*/*.png"))[0].read_bytes()
    row = {"path": "a.png", "content": content}
    for wanted in (True, False):
        (found,) = scanned(replace(ANY, fingerprints=wanted), [row])
        assert found.pixel_sha256 == pixel_digest(decode_image(content, "a.png"))
        assert bool(found.fingerprint) is wanted
    bad = look_at("a.png", b"no image", replace(ANY, fingerprints=True))
    assert (bad.fingerprint, bad.pixel_sha256) == (b"", "")


def image_of(sha256, source="a.tif", **more):
    return ImageRecord(source, TILED, sha256=sha256, label="a", split="train", **more)


def row_of(path, sha256, source="a.tif", **more):
    """What a task gets to cut an image."""
    return {"path": path, "version": "", "image": encode_record(image_of(sha256, source, **more))}


def rows_of(row, field, cutting, opening=None, *, tolerant=False):
    """All rows of one image, as the second pass makes them."""
    cut = cutter(field, cutting, opening or FileOpener("file"), tolerant=tolerant)
    return [each for batch in cut(table(**row)) for each in batch.to_pylist()]


def test_rows_tell_where_in_the_source_they_lie_whatever_the_pixel_size():
    y, x = np.mgrid[:300, :400]
    content = png(((x + y) // 4).astype(np.uint8))
    cutting = replace(
        ANY,
        spec=TileSpec(32, 0.5, [0, 20, 90]),
        pixel_size=2.0,
        source_pixel_size=1.0,
        zones=ZoneRules({}, bottom_strip=100),
        root="file:/in/",
    )
    found = look_at("file:/in/a.png", content, cutting)
    assert (found.width, found.height, found.pixel_size) == (400, 300, 2.0)
    assert found.zones
    field = image_field(cutting.spec, found.channels, found.dtype, "raw", ("a",), found.bits)
    row = row_of("file:/in/a.png", found.sha256, "a.png", pixel_size=found.pixel_size)
    rows = rows_of({**row, "content": content}, field, cutting)
    assert len(rows) == found.tiles
    assert found.excluded > 0
    for row in rows:
        pixels = np.frombuffer(row["image"], np.uint8)
        assert pixels.mean() == pytest.approx((row["src_cx"] + row["src_cy"]) / 4, abs=1)
        assert row["src_cy"] < 200
        assert (row["scale"], row["pixel_size"]) == (0.5, 2.0)
    assert max(row["src_cx"] for row in rows) > 300


def test_an_image_that_keeps_no_tile_is_named():
    content = png(np.zeros((40, 40), np.uint8))
    cutting = replace(ANY, spec=TileSpec(32, angles=[0]))
    assert look_at("a.png", content, cutting).error is None
    for wrong in (
        replace(cutting, zones=ZoneRules({}, bottom_strip=10)),
        replace(cutting, spec=TileSpec(64)),
    ):
        assert "a.png" in look_at("a.png", content, wrong).error


@pytest.fixture
def paths(tmp_path):
    made = [tmp_path / f"{number} [x].png" for number in range(6)]
    for number, path in enumerate(made):
        Image.fromarray(np.full((24, 24), number, np.uint8)).save(path)
    return made


FIELD = Field("image", (16, 16, 1), classes=("a",))


@pytest.mark.spark
@pytest.mark.parametrize("kind", ["file", "spark"])
def test_each_task_cuts_the_units_of_its_partition_in_their_order(spark, paths, kind):
    from pyspark.sql import functions as F

    records, scans = zip(*map(planned, paths), strict=True)
    tasks = [records[:2], records[2:4], records[4:]]
    by_path = {record.source: scan for record, scan in zip(records, scans, strict=True)}
    tiles = tile_frame(spark, tasks, by_path, Reader(FileOpener(kind)), FIELD, CUTTING)
    rows = tiles.select(F.spark_partition_id().alias("at"), "source").collect()
    found = list(dict.fromkeys(map(tuple, rows)))
    assert found == [(i // 2, path.name) for i, path in enumerate(paths)]


@pytest.mark.spark
@pytest.mark.parametrize("kind", ["file", "spark"])
def test_both_ways_of_reading_see_the_same(spark, paths, kind):
    lengths = {f"file:{path}": path.stat().st_size for path in paths}
    paths[1].write_bytes(b"no image")
    paths[2].unlink()
    found = {
        each.uri: each
        for each in measure_files(spark, TileMeasure(CUTTING), lengths, Reader(FileOpener(kind)))
    }
    good = [f"file:{path}" for path in (paths[0], *paths[3:])]
    assert [found[uri].width for uri in good] == [24] * 4
    assert {uri for uri, each in found.items() if each.error is None} == set(good)
    assert found[f"file:{paths[1]}"].error
    # Spark tells nothing of a file that is gone.
    assert (f"file:{paths[2]}" in found) == (kind == "file")


def test_many_files_are_looked_at_in_several_jobs(monkeypatch):
    monkeypatch.setattr("data_prep.spark.scan.FILES_PER_JOB", 3)
    jobs = []

    def work(lengths, _):
        jobs.append(lengths)
        return list(lengths)

    lengths = {f"{number}.png": number for number in range(8)}
    assert list(run_in_batches(work, lengths, Reader(FileOpener("file")), print)) == [*lengths]
    assert [len(each) for each in jobs] == [3, 3, 2]
    assert {uri: length for each in jobs for uri, length in each.items()} == lengths


@pytest.mark.full
def test_rows_of_an_image_that_is_read_part_by_part_are_the_same(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    path = tmp_path / "a.tif"
    spec = TileSpec(32, angles=[0, 20, 110])
    deep = rng.integers(0, 4096, (150, 190, 1), dtype=np.uint16).repeat(3, axis=2)
    for pixels, channels, more in (
        (rng.integers(0, 256, (150, 190, 3), dtype=np.uint8), None, {}),
        (rng.integers(0, 256, (150, 190, 3), dtype=np.uint8), 1, {"keep": "mean>127"}),
        (deep, None, {}),
        (deep, None, {"normalising": "percentile:1.3:98", "keep": "std>19000,mean<33000"}),
        (deep // 16, 3, {"normalising": "standard"}),
    ):
        chosen = {
            "keep": parse_filter(more.get("keep")),
            "normalising": parse_normalising(more.get("normalising")),
        }
        tifffile.imwrite(path, pixels, tile=(64, 64), compression="zlib", photometric="rgb")
        cutting = replace(ANY, spec=spec, channels=channels, root=f"file:{tmp_path}", **chosen)
        found = []
        for region_bytes in (1 << 30, 0):
            monkeypatch.setattr(preprocess, "REGION_BYTES", region_bytes)
            (seen,) = scanned(cutting, [{"path": f"file:{path}"}])
            assert seen.error is None
            field = image_field(spec, seen.channels, seen.dtype, "raw", ("a",), seen.bits)
            row = row_of(f"file:{path}", seen.sha256, low=seen.low, high=seen.high)
            found.append((replace(seen, fingerprint=b""), rows_of(row, field, cutting)))
        assert found[0] == found[1]
        kept = len(found[0][1])
        assert kept == found[0][0].tiles > 50 or (chosen["keep"] and kept > 10)


@pytest.mark.parametrize("method", ["min-max", "percentile:2:98", "standard"])
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_images_are_normalised_by_what_was_found_out_of_them(method, dtype):
    pixels = np.random.default_rng(0).integers(40, 180, (48, 64), dtype=dtype)
    spec = TileSpec(16, angles=[0, 20])
    cutting = replace(ANY, spec=spec, normalising=parse_normalising(method))
    found = look_at("a.png", png(pixels), cutting)
    assert (found.error, found.bits) == (None, pixels.dtype.itemsize * 8)
    expected = cutting.normalising.range_of(count_values(pixels))
    assert (found.low, found.high) == expected
    field = image_field(cutting.spec, 1, pixels.dtype.name, "raw", ("a",), found.bits)
    row = row_of("a.png", found.sha256, "a.png", low=found.low, high=found.high)
    row["content"] = png(pixels)
    rows = rows_of(row, field, cutting)
    tiles = list(iter_tiles(normalise(pixels, expected)[:, :, None], cutting.spec))
    assert [each["image"] for each in rows] == [tile.pixels.tobytes() for tile in tiles]
    # The range of the raw values does not tell the data set's bits any more.
    plain = look_at("a.png", png(pixels), replace(cutting, normalising=None))
    assert (plain.low, plain.high) == (None, None)
    assert plain.pixel_sha256 == found.pixel_sha256


def test_a_look_tells_which_part_of_the_tiles_is_kept():
    pixels = np.random.default_rng(0).integers(0, 256, (64, 128), dtype=np.uint8)
    pixels[:, :64] = 9
    cutting = replace(ANY, spec=TileSpec(16, 0.0, angles=[0]))
    assert look_at("a.png", png(pixels), cutting).pass_rate == 1
    some = replace(cutting, keep=parse_filter("bg_fraction<0.5"))
    assert look_at("a.png", png(pixels), some).pass_rate == 0.5


class BadDisk(FileOpener):
    """Opens files that cannot be read to their end."""

    def open(self, uri):
        return OpenFile(open_bad_sector(), name=uri)


@pytest.mark.parametrize("always", [False, True])
def test_an_image_that_cannot_be_read_to_its_end_is_named_and_not_judged(always):
    """With a second attempt of the task, which tries each image first, and in the first one."""
    rows = [{"path": "file:/a.tif"}]
    (found,) = scanned(CUTTING, rows, BadDisk("file"), IsolationPolicy(always))
    assert "a.tif" in found.error
    assert found.sha256 == ""


class Told(dict):
    """What a task adds to an accumulator."""

    add = dict.update


@pytest.mark.parametrize("always", [False, True])
@pytest.mark.full
def test_an_image_that_cannot_be_read_a_second_time_has_no_tiles_and_the_task_says_why(always):
    """The driver had it read a third time, to learn why."""
    row, told = row_of("file:/a.tif", "0" * 64), Told()
    how = {"tolerant": True, "isolation": IsolationPolicy(always)}
    assert list(cutter(FIELD, CUTTING, BadDisk("file"), told, **how)(table(**row))) == []
    assert "a.tif" in told["0" * 64]
    with pytest.raises(UnreadableImageError, match=r"a\.tif"):
        rows_of(row, FIELD, CUTTING, BadDisk("file"))


def test_a_file_that_seems_to_have_changed_is_not_judged():
    """A server that does not answer looks so, too."""
    states = iter(range(2))
    content = OpenFile(BytesIO(png(np.zeros((24, 24), np.uint8))), lambda: next(states))
    found = inspect_image("a.png", content, CUTTING)
    assert "a.png" in found.error
    assert found.sha256 == ""


def table(**row):
    return iter([pa.RecordBatch.from_pylist([row])])


@pytest.mark.parametrize("tolerant", [False, True])
def test_a_large_image_that_changes_while_it_is_cut_ends_the_attempt(
    tmp_path, monkeypatch, tolerant
):
    monkeypatch.setattr(file_access, "IN_MEMORY_BYTES", 0)
    monkeypatch.setattr(preprocess, "REGION_BYTES", 0)
    path = tmp_path / "a.tif"
    tifffile.imwrite(path, np.zeros((24, 24), np.uint8))
    row = row_of(f"file:{path}", hashlib.sha256(path.read_bytes()).hexdigest())
    batches = cutter(FIELD, CUTTING, FileOpener("file"), tolerant=tolerant)(table(**row))
    next(batches)
    tifffile.imwrite(path, np.ones((24, 24), np.uint8))
    with pytest.raises(ImageError, match=r"a\.tif"):
        list(batches)


@pytest.mark.parametrize("more", [{"tile": (64, 64)}, {"rowsperstrip": 16}])
def test_a_large_file_is_read_once_to_look_at_it(monkeypatch, more):
    """It was read twice, once for its digest."""
    monkeypatch.setattr(preprocess, "REGION_BYTES", 0)
    pixels = np.random.default_rng(0).integers(0, 256, (2048, 1024), np.uint8)
    file = BytesIO()
    tifffile.imwrite(file, pixels, compression="zlib", **more)
    raw = Counting(file.getvalue())
    look = replace(CUTTING, spec=TileSpec(16, angles=[0]))
    found = inspect_image("a.tif", OpenFile(BufferedReader(raw)), look)
    assert (found.error, found.tiles > 0) == (None, True)
    assert found.sha256 == hashlib.sha256(raw.content).hexdigest()
    # The parts of 256 rows in which the tiles of a sample lie are decoded once more.
    assert raw.count < 1.2 * len(raw.content)


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        *((kind, np.uint8) for kind in (".png", ".jpg", ".bmp", ".tif")),
        *((kind, np.uint16) for kind in (".png", ".tif")),
    ],
)
def test_a_look_at_a_large_file_finds_the_same(kind, dtype):
    pixels = np.random.default_rng(0).integers(0, np.iinfo(dtype).max, (60, 80, 3), dtype)
    content = cv2.imencode(kind, pixels)[1].tobytes()
    raw = Counting(content)
    looks = [look_at("a", content, CUTTING)]
    looks.append(inspect_image("a", OpenFile(BufferedReader(raw)), CUTTING))
    held, found = looks
    assert found == held
    assert (found.error, found.sha256) == (None, hashlib.sha256(content).hexdigest())


class Remote(FileOpener):
    """Opens one large file, which has a version, and counts what is read of it."""

    content, version, read = b"", "first", 0

    def open(self, uri):
        raw = Counting(self.content)
        Remote.raw = raw
        return OpenFile(BufferedReader(raw), lambda: self.version, uri)


@pytest.fixture
def remote(monkeypatch):
    """A large image as the first pass has seen it: how it is opened, its digest and version."""
    monkeypatch.setattr(preprocess, "REGION_BYTES", 0)
    pixels = np.random.default_rng(0).integers(0, 256, (2048, 1024), np.uint8)
    file = BytesIO()
    tifffile.imwrite(file, pixels, compression="zlib", tile=(256, 256))
    monkeypatch.setattr(Remote, "content", file.getvalue())
    opening = Remote("file")
    (seen,) = scanned(LARGE, [{"path": "file:/a.tif"}], opening)
    row = row_of("file:/a.tif", seen.sha256)
    return opening, row | {"version": seen.version}


LARGE = replace(CUTTING, spec=TileSpec(64, 0.0, angles=[0]))
LARGE_FIELD = Field("image", (64, 64, 1), classes=("a",))


def cut_again(opening, row):
    return len(rows_of(row, LARGE_FIELD, LARGE, opening, tolerant=True))


def test_a_large_file_is_read_once_to_cut_it(remote):
    """It was read once more before, to see whether it had changed since it was looked at."""
    opening, row = remote
    assert cut_again(opening, row) == 512
    assert opening.raw.count < 1.2 * len(opening.content)


def test_a_large_file_of_another_version_is_known_by_its_bytes(remote, monkeypatch):
    opening, row = remote
    monkeypatch.setattr(Remote, "version", "touched")
    assert cut_again(opening, row) == 512
    assert opening.raw.count > 2 * len(opening.content)
    monkeypatch.setattr(Remote, "content", opening.content[:-1] + b"x")
    assert cut_again(opening, row) == 0
    # Spark reads the bytes, and nobody knows a version.
    row["version"] = ""
    assert cut_again(opening, row) == 0


def test_each_source_is_read_and_decoded_twice(paths, monkeypatch):
    """Once to inspect and once to cut; it was 5 to 18 times."""
    read, decoded = Counter(), Counter()

    class Counting(FileOpener):
        def open(self, uri):
            read[uri] += 1
            return super().open(uri)

    open_image = preprocess.open_image

    def counting(stream, uri, *rest, **more):
        decoded[uri] += 1
        return open_image(stream, uri, *rest, **more)

    monkeypatch.setattr(preprocess, "open_image", counting)
    found = scanned(CUTTING, [{"path": f"file:{path}"} for path in paths], Counting("file"))
    rows = [row_of(each.uri, each.sha256, each.uri) for each in found]
    tiles = sum(len(rows_of(row, FIELD, CUTTING, Counting("file"))) for row in rows)
    assert tiles == len(paths) * len(list(iter_tiles(np.zeros((24, 24), np.uint8), SPEC)))
    assert set(read.values()) == set(decoded.values()) == {2}
    assert set(read) == {f"file:{path}" for path in paths}


@pytest.mark.spark
def test_a_job_that_still_runs_gets_images_one_by_one_when_another_one_ends(spark):
    name = "spark.sql.execution.arrow.maxRecordsPerBatch"
    users = spark.conf.get(name)
    first, second = ExitStack(), ExitStack()
    first.enter_context(one_image_a_batch(spark))
    second.enter_context(one_image_a_batch(spark))
    first.close()
    assert spark.conf.get(name) == "1"
    second.close()
    assert spark.conf.get(name) == users
