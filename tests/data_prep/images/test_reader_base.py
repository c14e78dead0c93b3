"""Files of microscopes, written by libraries or by `vendor_files`."""

from __future__ import annotations

import hashlib
import shutil
import sys
from io import BufferedReader, BytesIO
from types import SimpleNamespace

import numpy as np
import pytest
import zarr
from pylibCZIrw import czi as pyczi
from zarr.storage import LocalStore, ZipStore

from data_prep import TilingSettings, update_tiles
from data_prep.geometry.grid import TileSpec
from data_prep.geometry.tiling_config import TilingConfig
from data_prep.images import multifile_images
from data_prep.images.file_access import FILE, WEBHDFS, FileOpener, OpenFile
from data_prep.images.open_image import open_image, read_image
from data_prep.images.plane_selection import PlaneSelector
from data_prep.spark.passes import inspect_image
from distkeras_grid.errors import AmbiguousImageError, ImageError, UnreadableImageError
from distkeras_grid.spark.dataframes import read_parquet
from tests.data_prep.counting import Counting
from tests.data_prep.image_checks import check_regions, gray
from tests.data_prep.vendor_files import write_dm, write_nd2
from tests.distkeras_grid.webhdfs.loopback import loopback

pytestmark = [pytest.mark.usefixtures("event_loop")]

RNG = np.random.default_rng(4)
COLOUR = RNG.integers(0, 256, (300, 420, 3), dtype=np.uint8)
STACK = RNG.integers(0, 4096, (2, 2, 3, 300, 420), dtype=np.uint16)  # time, channel, z, y, x
LABELS = ("DAPI", "GFP")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("vendor")


@pytest.fixture(scope="module")
def colour_czi(folder):
    path = folder / "colour.czi"
    with pyczi.create_czi(str(path)) as file:
        file.write(np.ascontiguousarray(COLOUR[:, :, ::-1]), plane={"C": 0, "T": 0, "Z": 0})
        file.write_metadata("x", channel_names={0: "RGB"}, scale_x=0.5e-6, scale_y=0.25e-6)
    return path


@pytest.fixture(scope="module")
def stack_czi(folder):
    path = folder / "stack.czi"
    with pyczi.create_czi(str(path)) as file:
        for t, c, z in np.ndindex(STACK.shape[:3]):
            place = {"C": c, "T": t, "Z": z}
            # Fields of view of a mosaic; coordinates may be negative.
            file.write(STACK[t, c, z, :, :200].copy(), plane=place, location=(-70, 30))
            file.write(STACK[t, c, z, :, 200:].copy(), plane=place, location=(130, 30))
        file.write_metadata("x", channel_names=dict(enumerate(LABELS)), scale_x=1e-6, scale_y=1e-6)
    return path


@pytest.fixture(scope="module")
def stack_zarr(folder):
    return write_zarr(folder / "stack.ozx", "0.5")


@pytest.fixture(scope="module")
def former_zarr(folder):
    return write_zarr(folder / "former.zarr.zip", "0.4")


def write_zarr(path, version, stack=STACK):
    axes = [{"name": "t", "type": "time"}, {"name": "c", "type": "channel"}]
    axes += [{"name": axis, "type": "space", "unit": "nanometer"} for axis in "zyx"]
    levels = [
        {
            "path": str(level),
            "coordinateTransformations": [
                {"type": "scale", "scale": [1, 1, 1000, 500 << level, 250 << level]}
            ],
        }
        for level in range(2)
    ]
    attributes = {
        "version": version,
        "multiscales": [{"name": "x", "axes": axes, "datasets": levels}],
        "omero": {"channels": [{"label": label} for label in LABELS]},
    }
    with LocalStore(path) if path.suffix == ".zarr" else ZipStore(path, mode="w") as store:
        if version == "0.5":
            group = zarr.create_group(store, attributes={"ome": attributes})
        else:
            group = zarr.create_group(store, attributes=attributes, zarr_format=2)
        for level, pixels in enumerate((stack, stack[..., ::2, ::2])):
            chunks = (1, 1, 1, 128, 96)
            array = group.create_array(
                str(level), shape=pixels.shape, chunks=chunks, dtype=pixels.dtype
            )
            array[:] = pixels
    return path


@pytest.fixture(scope="module")
def stack_nd2(folder):
    frames = np.ascontiguousarray(np.moveaxis(STACK, 1, -1)).reshape(6, 300, 420, 2)
    return write_nd2(folder / "stack.nd2", frames, LABELS, (("T", 2), ("Z", 3)))


@pytest.fixture(params=["stack_czi", "stack_zarr", "former_zarr", "stack_nd2"])
def stack(request):
    return request.getfixturevalue(request.param)


@pytest.mark.parametrize("axis", "RIHVB")
def test_further_dimensions_of_a_czi_are_pages(folder, axis):
    """Phases of Airyscan and SIM, illuminations, views, rotations and blocks."""
    path = folder / f"{axis}.czi"
    with pyczi.create_czi(str(path)) as file:
        # The library writes only channels, times and focal planes of its own accord.
        file._create_plane = lambda place, scene: {**place, "S": scene}
        for t, c, z in np.ndindex(STACK.shape[:3]):
            file.write(STACK[t, c, z], plane={"T": t, "C": c, axis: z})
    content = path.read_bytes()
    with pytest.raises(AmbiguousImageError, match="6 pages"):
        read_image(content, "x", PlaneSelector(channel="0"))
    for page, (t, z) in enumerate(np.ndindex(2, 3)):
        np.testing.assert_array_equal(gray(content, page, "1"), STACK[t, 1, z])


CHOICES = {
    "one plane": (PlaneSelector(1, "GFP", "2"), STACK[1, 1, 2]),
    "by number": (PlaneSelector(0, "0", "0"), STACK[0, 0, 0]),
    "max": (PlaneSelector(0, "DAPI", "max"), STACK[0, 0].max(axis=0)),
    "three": (PlaneSelector(1, "1,0,1", "1"), np.moveaxis(STACK[1, [1, 0, 1], 1], 0, 2)),
}


@pytest.mark.parametrize(("choice", "expected"), CHOICES.values(), ids=CHOICES)
def test_planes_whole_and_by_region(stack, choice, expected):
    with stack.open("rb") as stream:
        check_regions(stream, expected, choice)


def leave_free(monkeypatch, free):
    monkeypatch.setattr(multifile_images.shutil, "disk_usage", lambda _: SimpleNamespace(free=free))


def test_a_copy_for_which_the_local_disk_has_no_room_is_not_begun(stack, monkeypatch):
    """It filled the disk of the task, and of all others on the host."""
    content = stack.read_bytes()
    leave_free(monkeypatch, len(content) - 1)
    with pytest.raises(UnreadableImageError, match=f"{len(content):,} bytes"):
        read_image(content, "x", PlaneSelector(0, "GFP", "1"))
    leave_free(monkeypatch, len(content))
    read_image(content, "x", PlaneSelector(0, "GFP", "1"))


def test_colour_and_pixel_sizes(colour_czi, stack_zarr):
    content = colour_czi.read_bytes()
    picture = read_image(content, "x")
    np.testing.assert_array_equal(picture.pixels, COLOUR)
    assert picture.pixel_size == pytest.approx((0.5, 0.25))
    green = read_image(content, "x", PlaneSelector(channel="green"))
    np.testing.assert_array_equal(green.pixels[:, :, 0], COLOUR[:, :, 1])
    scaled = read_image(stack_zarr.read_bytes(), "x", PlaneSelector(0, "0", "0"))
    assert scaled.pixel_size == pytest.approx((0.25, 0.5))


@pytest.mark.parametrize(
    "choice",
    [
        PlaneSelector(),
        PlaneSelector(0),
        PlaneSelector(0, "DAPI"),
        PlaneSelector(None, "DAPI", "0"),
        PlaneSelector(0, None, "0"),
    ],
)
def test_what_is_not_chosen_is_asked_for(stack, choice):
    with pytest.raises(AmbiguousImageError, match="x"):
        read_image(stack.read_bytes(), "x", choice)


@pytest.mark.parametrize("is_local", [True, False])
def test_a_look_at_a_large_file_of_a_microscope_finds_the_same(stack, is_local):
    """Its library opens a local file by the path, and else a copy."""
    cutting = TilingConfig(
        TileSpec(64, angles=[0, 20]), "raw", 90, None, PlaneSelector(0, "0", "max")
    )
    content = stack.read_bytes()
    looks = [inspect_image("x", OpenFile.of(content), cutting)]
    with open(stack, "rb") if is_local else BufferedReader(Counting(content)) as file:
        looks.append(inspect_image("x", OpenFile(file), cutting))
    held, found = looks
    assert held.error is None
    assert found == held
    assert found.sha256 == hashlib.sha256(content).hexdigest()


@pytest.mark.parametrize("kind", ["cut", "damaged"])
@pytest.mark.parametrize(
    "file", ["stack_czi", "stack_zarr", "former_zarr", "stack_nd2", "stack.dm3", "stack.dm4"]
)
def test_damage_is_an_error_with_the_name_of_the_file(folder, request, file, kind):
    if file.startswith("stack.dm"):
        content = write_dm(folder / file, STACK[0, 0, 0]).read_bytes()
    else:
        content = request.getfixturevalue(file).read_bytes()
    half = len(content) // 2
    broken = content[:half] if kind == "cut" else content[:20] + bytes(half) + content[half + 20 :]
    with pytest.raises(ImageError, match="broken"):
        read_image(broken, "broken", PlaneSelector(0, "0", "max"))


@pytest.mark.parametrize(
    "attributes",
    [
        {},
        {"ome": {"multiscales": []}},
        {"multiscales": [{"axes": [{"name": "y"}], "datasets": [{"path": "0"}]}]},
        {"multiscales": [{"axes": [{"name": "y"}, {"name": "x"}], "datasets": [{"path": "9"}]}]},
        {"multiscales": [{"axes": [{"name": "y"}, {"name": "q"}], "datasets": [{"path": "0"}]}]},
    ],
)
def test_other_archives_are_refused(tmp_path, attributes):
    with ZipStore(tmp_path / "a.zip", mode="w") as store:
        group = zarr.create_group(store, attributes=attributes)
        group.create_array("0", shape=(4, 4), dtype="uint8")
    with pytest.raises(ImageError, match="x"):
        read_image((tmp_path / "a.zip").read_bytes(), "x")


def test_without_the_package_the_extra_is_named(stack, monkeypatch):
    for name in ("nd2", "zarr", "pylibCZIrw", "pylibCZIrw.czi"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImageError, match=r"distkeras_grid\[formats\]"):
        open_image(BytesIO(stack.read_bytes()), "x", PlaneSelector(0, "0", "0"))


@pytest.mark.parametrize("version", ["0.4", "0.5"])
def test_a_folder_of_ome_zarr(tmp_path, version):
    """Read, identified and watched as one image."""
    path = tmp_path / "stack.zarr"
    write_zarr(path, version)
    choice, expected = PlaneSelector(1, "GFP", "2"), STACK[1, 1, 2]
    with FileOpener(FILE).open(f"file:{path}") as content:
        digest = content.sha256()
        assert len(digest) == 64
        check_regions(content.stream, expected, choice)
        assert not content.is_changed
        some = next(each for each in path.rglob("*") if each.is_file() and each.suffix != ".json")
        some.write_bytes(some.read_bytes() + b"x")
        assert content.is_changed
        assert content.sha256() != digest


def test_a_folder_on_hdfs_is_copied_and_the_copy_deleted(tmp_path, monkeypatch):
    path, small = tmp_path / "stack.zarr", STACK[:1, :1, :1, :100, :90]
    write_zarr(path, "0.5", small)
    with loopback() as hdfs:
        for file in path.rglob("*"):
            name = f"/raw/{file.relative_to(tmp_path).as_posix()}"
            if file.is_file():
                hdfs.files[name] = file.read_bytes()
            else:
                hdfs.directories.add(name)
        hdfs.directories |= {"/raw", "/raw/stack.zarr"}
        opening = FileOpener(WEBHDFS, hdfs.address)
        with opening.open("hdfs:///raw/stack.zarr") as content:
            copy = content.stream.path
            picture = open_image(content.stream, "x", region_bytes=None)
            digest = content.sha256()
        assert not copy.exists()
        leave_free(monkeypatch, 1000)
        with pytest.raises(UnreadableImageError, match=r"stack\.zarr"):
            opening.open("hdfs:///raw/stack.zarr")
    np.testing.assert_array_equal(picture.pixels[:, :, 0], small[0, 0, 0])
    with FileOpener(FILE).open(f"file:{path}") as content:
        assert content.sha256() == digest


@pytest.mark.full
@pytest.mark.spark
def test_a_night_of_folders(spark, tmp_path):
    """Each is one image, however many files it has; one of which a part changes is another."""
    raw = tmp_path / "raw"
    for label, time in (("a", 0), ("b", 1)):
        (raw / label).mkdir(parents=True)
        write_zarr(raw / label / "stack [1].zarr", "0.4", np.flip(STACK, axis=time))
    (raw / "a" / "notes.txt").write_text("x")
    settings = TilingSettings(
        *(str(raw), str(tmp_path / "tiles"), TileSpec(100, overlap=0, angles=[0])),
        **{"glob": "*.zarr", "split": "1", "channel": "DAPI", "z": "1", "page": 0},
        update=True,
    )
    night = [update_tiles(settings, spark=spark) for _ in range(2)]
    assert [(each.tiles, each.new, each.unchanged) for each in night] == [(24, 2, 0), (0, 0, 2)]
    rows = read_parquet(spark, settings.output)
    assert {row.source for row in rows.select("source").distinct().collect()} == {
        "a/stack [1].zarr",
        "b/stack [1].zarr",
    }
    write_zarr(tmp_path / "other.zarr", "0.4", STACK // 2)
    shutil.rmtree(raw / "a" / "stack [1].zarr")
    shutil.move(tmp_path / "other.zarr", raw / "a" / "stack [1].zarr")
    third = update_tiles(settings, spark=spark)
    assert (third.new, third.changed, third.unchanged) == (0, 1, 1)


def test_an_empty_folder_is_no_image(tmp_path):
    (tmp_path / "a.zarr").mkdir()
    with (
        FileOpener(FILE).open(f"file:{tmp_path}/a.zarr") as content,
        pytest.raises(ImageError, match="empty"),
    ):
        open_image(content.stream, "x")


@pytest.mark.full
def test_colour_of_nd2_and_dm(tmp_path):
    blue_first = np.ascontiguousarray(COLOUR[:, :, ::-1])
    for path in (
        write_nd2(tmp_path / "a.nd2", blue_first[np.newaxis]),
        write_dm(tmp_path / "a.dm3", COLOUR),
        write_dm(tmp_path / "a.dm4", COLOUR),
    ):
        with path.open("rb") as stream:
            check_regions(stream, COLOUR)


@pytest.mark.parametrize("ending", ["dm3", "dm4"])
def test_digital_micrograph(tmp_path, ending):
    path = write_dm(tmp_path / f"a.{ending}", STACK[0, 0])
    with path.open("rb") as stream:
        picture = check_regions(stream, STACK[0, 0, 2], PlaneSelector(2))
        assert picture.pixel_size == pytest.approx((0.00025, 0.00025))
        with pytest.raises(AmbiguousImageError, match="3 pages"):
            open_image(stream, "x")
    diffraction = write_dm(tmp_path / f"b.{ending}", STACK[0, 0, 0], units="1/nm")
    assert read_image(diffraction.read_bytes(), "x").pixel_size is None
    fractions = write_dm(tmp_path / f"c.{ending}", np.ones((4, 4), np.float32))
    with pytest.raises(ImageError, match="float32"):
        read_image(fractions.read_bytes(), "x")


def test_frames_that_were_never_recorded_are_not_black(tmp_path):
    frames = np.ones((3, 8, 8, 1), np.uint16)
    path = write_nd2(tmp_path / "a.nd2", frames, loops=(("T", 3),), recorded=2)
    assert read_image(path.read_bytes(), "x", PlaneSelector(1)).pixels.max() == 1
    with pytest.raises(ImageError, match="only 2 were recorded"):
        read_image(path.read_bytes(), "x", PlaneSelector(2))


def test_a_size_that_was_not_measured_is_none(tmp_path):
    path = write_nd2(tmp_path / "a.nd2", np.ones((1, 8, 8, 1), np.uint16), calibration=None)
    assert read_image(path.read_bytes(), "x").pixel_size is None
