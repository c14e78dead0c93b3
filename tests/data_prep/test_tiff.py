"""TIFF files as microscopes and their programs write them, made here by tifffile and Pillow."""

from __future__ import annotations

from contextlib import suppress
from io import BytesIO

import numpy as np
import pytest
import tifffile
from PIL import Image

from data_prep.images import decode_image, read_image
from data_prep.picture import Choice
from distkeras_grid.errors import AmbiguousImageError, ConfigurationError, ImageError

RNG = np.random.default_rng(5)
GRAY = RNG.integers(0, 256, (33, 47), dtype=np.uint8)
COLOUR = RNG.integers(0, 256, (33, 47, 3), dtype=np.uint8)
DEEP = RNG.integers(0, 65536, (33, 47), dtype=np.uint16)
DEEP_COLOUR = RNG.integers(0, 65536, (33, 47, 3), dtype=np.uint16)
STACK = RNG.integers(0, 65536, (5, 3, 33, 47), dtype=np.uint16)  # z, channel, y, x


def write(pixels, **options):
    stream = BytesIO()
    tifffile.imwrite(stream, pixels, **options)
    return stream.getvalue()


def by_pillow(image, **options):
    stream = BytesIO()
    image.save(stream, "TIFF", **options)
    return stream.getvalue()


@pytest.mark.parametrize("compression", [None, "zlib", "lzw", "zstd"])
@pytest.mark.parametrize("tile", [None, (16, 32)])
@pytest.mark.parametrize("bigtiff", [False, True])
@pytest.mark.parametrize("pixels", [COLOUR, DEEP_COLOUR], ids=["8", "16"])
def test_planar_colour(pixels, bigtiff, tile, compression):
    planes = np.ascontiguousarray(np.moveaxis(pixels, 2, 0))
    content = write(
        planes,
        photometric="rgb",
        planarconfig="separate",
        bigtiff=bigtiff,
        tile=tile,
        compression=compression,
    )
    found = decode_image(content, "x")
    assert found.dtype == pixels.dtype
    np.testing.assert_array_equal(found, pixels)


@pytest.mark.parametrize("byteorder", ["<", ">"])
@pytest.mark.parametrize("pixels", [GRAY, DEEP], ids=["8", "16"])
def test_white_as_0_is_inverted_at_all_depths(pixels, byteorder):
    content = write(pixels, photometric="miniswhite", byteorder=byteorder)
    picture = read_image(content, "x")
    assert picture.notes
    np.testing.assert_array_equal(picture.pixels[..., 0], np.iinfo(pixels.dtype).max - pixels)
    black = write(pixels, photometric="minisblack", byteorder=byteorder)
    assert read_image(black, "x").notes == ()


def test_bilevel_has_black_and_white():
    bits = GRAY > 127
    for photometric, black in (("miniswhite", True), ("minisblack", False)):
        found = decode_image(write(bits, photometric=photometric), "x")
        np.testing.assert_array_equal(found[..., 0], np.where(bits == black, 0, 255))
    packed = by_pillow(Image.fromarray(bits), compression="group4")
    np.testing.assert_array_equal(decode_image(packed, "x")[..., 0], bits * np.uint8(255))


@pytest.mark.parametrize("mode", ["P", "CMYK", "YCbCr"])
def test_colour_spaces_come_out_as_pillow_has_them(mode):
    image = Image.fromarray(COLOUR).convert(mode)
    content = by_pillow(image)
    np.testing.assert_array_equal(decode_image(content, "x"), np.asarray(image.convert("RGB")))


def test_jpeg_in_tiles_of_ome():
    smooth = np.zeros((96, 128, 3), np.uint8)
    smooth[..., 0], smooth[..., 1] = np.arange(128), np.arange(96)[:, None]
    content = write(smooth, photometric="rgb", tile=(32, 32), compression="jpeg", ome=True)
    found = decode_image(content, "x.ome.tif")
    assert found.shape == smooth.shape
    assert np.abs(found.astype(int) - smooth).max() <= 8


def test_12_bits_in_16_and_packed():
    pixels = DEEP >> 4
    packed = write(pixels, bitspersample=12)
    np.testing.assert_array_equal(decode_image(packed, "x")[..., 0], pixels)
    assert read_image(packed, "x").bits == 12
    ome = write(pixels, ome=True, metadata={"axes": "YX", "SignificantBits": 12})
    np.testing.assert_array_equal(decode_image(ome, "x")[..., 0], pixels)
    assert read_image(ome, "x").bits == 12
    assert read_image(write(pixels), "x").bits is None


def ome_stack():
    return write(STACK, ome=True, metadata={"axes": "ZCYX", "Channel": {"Name": list("abc")}})


def imagej_stack():
    return write(STACK, imagej=True, metadata={"axes": "ZCYX"})


@pytest.mark.parametrize("content", [ome_stack(), imagej_stack()], ids=["OME", "ImageJ"])
def test_planes_of_a_stack_are_chosen_or_refused(content):
    for choice in (Choice(), Choice(z="max"), Choice(channel="1"), Choice(page=0)):
        with pytest.raises(AmbiguousImageError):
            read_image(content, "x", choice)
    planes = {
        ("2", "1"): STACK[2, 1],
        ("max", "2"): STACK[:, 2].max(axis=0),
        ("mean", "0"): np.rint(STACK[:, 0].mean(axis=0)),
    }
    for (z, channel), expected in planes.items():
        found = read_image(content, "x", Choice(channel=channel, z=z)).pixels
        assert found.dtype == np.uint16
        np.testing.assert_array_equal(found[..., 0], expected)
    composite = read_image(content, "x", Choice(channel="2,0,1", z="4")).pixels
    np.testing.assert_array_equal(composite, np.moveaxis(STACK[4, [2, 0, 1]], 0, 2))
    for wrong in (Choice(channel="3", z="0"), Choice(channel="0", z="5"), Choice(1, "0", "0")):
        with pytest.raises(ImageError):
            read_image(content, "x", wrong)


def test_channels_have_names():
    found = read_image(ome_stack(), "x", Choice(channel="b", z="0")).pixels
    np.testing.assert_array_equal(found[..., 0], STACK[0, 1])
    with pytest.raises(ImageError, match="a, b, c"):
        read_image(ome_stack(), "x", Choice(channel="DAPI", z="0"))


def test_times_are_pages():
    times = RNG.integers(0, 256, (4, 2, 33, 47), dtype=np.uint8)
    content = write(times, imagej=True, metadata={"axes": "TZYX"})
    with pytest.raises(AmbiguousImageError, match="4 pages"):
        read_image(content, "x", Choice(z="max"))
    found = read_image(content, "x", Choice(page=3, z="max")).pixels
    np.testing.assert_array_equal(found[..., 0], times[3].max(axis=0))


def test_pages_without_meaning_are_what_the_choice_says():
    pages = np.stack([GRAY, 255 - GRAY, GRAY // 2])
    content = write(pages, photometric="minisblack")
    with pytest.raises(AmbiguousImageError, match="3 pages"):
        decode_image(content, "x")
    for choice, expected in (
        (Choice(page=2), pages[2]),
        (Choice(z="max"), pages.max(axis=0)),
        (Choice(z="1"), pages[1]),
        (Choice(channel="1"), pages[1]),
    ):
        found = read_image(content, "x", choice).pixels
        np.testing.assert_array_equal(found[..., 0], expected)


def test_pages_of_several_sizes():
    small = Image.fromarray(GRAY[:10, :20])
    content = by_pillow(Image.fromarray(GRAY), save_all=True, append_images=[small])
    with pytest.raises(AmbiguousImageError, match="2 pages"):
        decode_image(content, "x")
    found = read_image(content, "x", Choice(page=1)).pixels
    np.testing.assert_array_equal(found[..., 0], GRAY[:10, :20])


@pytest.mark.parametrize("inside", [True, False], ids=["pyramid", "thumbnail"])
def test_reduced_copies_do_not_count(inside):
    stream = BytesIO()
    with tifffile.TiffWriter(stream) as writer:
        writer.write(GRAY, subifds=1 if inside else None, metadata=None)
        writer.write(GRAY[::2, ::2], subfiletype=1, metadata=None)
    np.testing.assert_array_equal(decode_image(stream.getvalue(), "x")[..., 0], GRAY)


def test_samples_that_are_no_colour_are_channels():
    samples = RNG.integers(0, 256, (33, 47, 5), dtype=np.uint8)
    content = write(samples, photometric="minisblack", planarconfig="contig")
    with pytest.raises(AmbiguousImageError, match="5 channels"):
        decode_image(content, "x")
    found = read_image(content, "x", Choice(channel="4")).pixels
    np.testing.assert_array_equal(found[..., 0], samples[..., 4])


@pytest.mark.parametrize("extrasamples", ["unassalpha", "assocalpha", "unspecified"])
@pytest.mark.parametrize("pixels", [COLOUR, DEEP_COLOUR, GRAY], ids=["8", "16", "gray"])
def test_alpha_must_be_opaque(pixels, extrasamples):
    highest = np.iinfo(pixels.dtype).max
    opaque = np.dstack([pixels, np.full((33, 47), highest, pixels.dtype)])
    options = {
        "photometric": "minisblack" if pixels.ndim == 2 else "rgb",
        "planarconfig": "contig",
        "extrasamples": [extrasamples],
    }
    if pixels.ndim == 2 and extrasamples == "unspecified":
        with pytest.raises(AmbiguousImageError):
            decode_image(write(opaque, **options), "x")
        return
    found = decode_image(write(opaque, **options), "x")
    np.testing.assert_array_equal(found, pixels.reshape(33, 47, -1))
    opaque[3, 4, -1] -= 1
    with pytest.raises(ImageError, match="transparent"):
        decode_image(write(opaque, **options), "x")


def test_what_has_no_common_meaning_is_refused():
    for content in (
        write(GRAY.astype(np.float32)),
        write(GRAY.astype(np.int8) - 100),
        write(DEEP.astype(np.uint32) + 65536),
        write(COLOUR, photometric="cielab"),
    ):
        with pytest.raises(ImageError):
            decode_image(content, "x")
    np.testing.assert_array_equal(decode_image(write(DEEP.astype(np.uint32)), "x")[..., 0], DEEP)


@pytest.mark.parametrize("compression", [None, "zlib", "jpeg"])
def test_every_cut_of_a_tiff_is_refused(compression):
    whole = write(COLOUR, tile=(16, 16), photometric="rgb", compression=compression)
    for end in range(8, len(whole) - 1, max(1, len(whole) // 60)):
        # The last bytes may be the values of tags that do not matter.
        try:
            found = decode_image(whole[:end], "x")
        except ImageError:
            continue
        np.testing.assert_array_equal(found, decode_image(whole, "x"))


def test_changed_bytes_never_raise_anything_else():
    whole = bytearray(write(COLOUR, tile=(16, 16), photometric="rgb", compression="zlib"))
    for at in range(4, 400):
        damaged = bytearray(whole)
        damaged[at] ^= 0xFF
        with suppress(ImageError):
            decode_image(bytes(damaged), "x")


OME_OF_TWO_FILES = """<?xml version="1.0" encoding="UTF-8"?>
<OME xmlns="http://www.openmicroscopy.org/Schemas/OME/2016-06" UUID="urn:uuid:1">
<Image ID="Image:0"><Pixels ID="Pixels:0" DimensionOrder="XYCZT" Type="uint16"
SizeX="47" SizeY="33" SizeC="2" SizeZ="1" SizeT="1">
<Channel ID="Channel:0:0" SamplesPerPixel="1"/><Channel ID="Channel:0:1" SamplesPerPixel="1"/>
<TiffData IFD="0" FirstC="0" PlaneCount="1"><UUID FileName="a.tif">urn:uuid:1</UUID></TiffData>
<TiffData IFD="0" FirstC="1" PlaneCount="1"><UUID FileName="{other}">urn:uuid:2</UUID></TiffData>
</Pixels></Image></OME>"""


def test_only_this_file_is_opened(tmp_path):
    other = tmp_path / "other.tif"
    other.write_bytes(write(DEEP // 2))
    content = write(DEEP, description=OME_OF_TWO_FILES.format(other=other), metadata=None)
    np.testing.assert_array_equal(decode_image(content, "x")[..., 0], DEEP)
    with pytest.raises(ImageError):
        read_image(content, "x", Choice(channel="1"))


def test_a_plane_that_is_not_there_is_refused():
    xml = OME_OF_TWO_FILES.replace('<UUID FileName="a.tif">urn:uuid:1</UUID>', "")
    xml = xml[: xml.index('<TiffData IFD="0" FirstC="1"')] + xml[xml.index("</Pixels>") :]
    content = write(DEEP, description=xml, metadata=None)
    np.testing.assert_array_equal(
        read_image(content, "x", Choice(channel="0")).pixels[..., 0], DEEP
    )
    with pytest.raises(ImageError):
        read_image(content, "x", Choice(channel="1"))


def test_choices_are_checked():
    for wrong in ({"page": -1}, {"z": "middle"}, {"channel": "0,1"}, {"channel": ""}):
        with pytest.raises(ConfigurationError):
            Choice(**wrong)
