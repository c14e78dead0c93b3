"""TIFF files as microscopes and their programs write them, made here by tifffile and Pillow."""

from __future__ import annotations

import json
import struct
import tracemalloc
from contextlib import suppress
from io import BytesIO

import numpy as np
import pytest
import tifffile
from PIL import Image

from data_prep.images.open_image import decode_image, read_image
from data_prep.images.plane_selection import PlaneSelector
from distkeras_grid.errors import AmbiguousImageError, ConfigurationError, ImageError
from tests.data_prep.image_checks import check_regions, gray, saved, tiff

RNG = np.random.default_rng(5)
GRAY = RNG.integers(0, 256, (33, 47), dtype=np.uint8)
COLOUR = RNG.integers(0, 256, (33, 47, 3), dtype=np.uint8)
DEEP = RNG.integers(0, 65536, (33, 47), dtype=np.uint16)
DEEP_COLOUR = RNG.integers(0, 65536, (33, 47, 3), dtype=np.uint16)
STACK = RNG.integers(0, 65536, (5, 3, 33, 47), dtype=np.uint16)  # z, channel, y, x


def test_white_as_0_is_told():
    assert read_image(tiff(GRAY, photometric="miniswhite"), "x").notes
    assert read_image(tiff(GRAY, photometric="minisblack"), "x").notes == ()


@pytest.mark.parametrize("mode", ["P", "CMYK", "YCbCr"])
def test_colour_spaces_come_out_as_pillow_has_them(mode):
    image = Image.fromarray(COLOUR).convert(mode)
    content = saved(image, "TIFF")
    np.testing.assert_array_equal(decode_image(content, "x"), np.asarray(image.convert("RGB")))


def test_12_bits_are_stated():
    pixels = DEEP >> 4
    assert read_image(tiff(pixels, bitspersample=12), "x").bits == 12
    ome = tiff(pixels, ome=True, metadata={"axes": "YX", "SignificantBits": 12})
    np.testing.assert_array_equal(decode_image(ome, "x")[..., 0], pixels)
    assert read_image(ome, "x").bits == 12
    assert read_image(tiff(pixels), "x").bits is None


def ome_stack():
    return tiff(STACK, ome=True, metadata={"axes": "ZCYX", "Channel": {"Name": list("abc")}})


def imagej_stack():
    return tiff(STACK, imagej=True, metadata={"axes": "ZCYX"})


@pytest.mark.parametrize("content", [ome_stack(), imagej_stack()], ids=["OME", "ImageJ"])
def test_planes_of_a_stack_are_chosen_or_refused(content):
    for choice in (
        PlaneSelector(),
        PlaneSelector(z="max"),
        PlaneSelector(channel="1"),
        PlaneSelector(page=0),
    ):
        with pytest.raises(AmbiguousImageError):
            read_image(content, "x", choice)
    planes = {
        ("2", "1"): STACK[2, 1],
        ("max", "2"): STACK[:, 2].max(axis=0),
        ("mean", "0"): np.rint(STACK[:, 0].mean(axis=0)),
    }
    for (z, channel), expected in planes.items():
        found = gray(content, channel=channel, z=z)
        assert found.dtype == np.uint16
        np.testing.assert_array_equal(found, expected)
    composite = read_image(content, "x", PlaneSelector(channel="2,0,1", z="4")).pixels
    np.testing.assert_array_equal(composite, np.moveaxis(STACK[4, [2, 0, 1]], 0, 2))
    for wrong in (
        PlaneSelector(channel="3", z="0"),
        PlaneSelector(channel="0", z="5"),
        PlaneSelector(1, "0", "0"),
    ):
        with pytest.raises(ImageError):
            read_image(content, "x", wrong)


def test_channels_have_names():
    np.testing.assert_array_equal(gray(ome_stack(), channel="b", z="0"), STACK[0, 1])
    with pytest.raises(ImageError, match="a, b, c"):
        read_image(ome_stack(), "x", PlaneSelector(channel="DAPI", z="0"))


def test_times_are_pages():
    times = RNG.integers(0, 256, (4, 2, 33, 47), dtype=np.uint8)
    content = tiff(times, imagej=True, metadata={"axes": "TZYX"})
    with pytest.raises(AmbiguousImageError, match="4 pages"):
        read_image(content, "x", PlaneSelector(z="max"))
    np.testing.assert_array_equal(gray(content, page=3, z="max"), times[3].max(axis=0))


def test_pages_without_meaning_are_what_the_choice_says():
    pages = np.stack([GRAY, 255 - GRAY, GRAY // 2])
    content = tiff(pages, photometric="minisblack")
    with pytest.raises(AmbiguousImageError, match="3 pages"):
        decode_image(content, "x")
    for choice, expected in (
        (PlaneSelector(page=2), pages[2]),
        (PlaneSelector(z="max"), pages.max(axis=0)),
        (PlaneSelector(z="1"), pages[1]),
        (PlaneSelector(channel="1"), pages[1]),
    ):
        np.testing.assert_array_equal(read_image(content, "x", choice).pixels[..., 0], expected)


def test_pages_of_several_sizes():
    small = Image.fromarray(GRAY[:10, :20])
    content = saved(GRAY, "TIFF", save_all=True, append_images=[small])
    with pytest.raises(AmbiguousImageError, match="2 pages"):
        decode_image(content, "x")
    np.testing.assert_array_equal(gray(content, page=1), GRAY[:10, :20])


@pytest.mark.parametrize("inside", [True, False], ids=["pyramid", "thumbnail"])
def test_reduced_copies_do_not_count(inside):
    stream = BytesIO()
    with tifffile.TiffWriter(stream) as writer:
        writer.write(GRAY, subifds=1 if inside else None, metadata=None)
        writer.write(GRAY[::2, ::2], subfiletype=1, metadata=None)
    np.testing.assert_array_equal(decode_image(stream.getvalue(), "x")[..., 0], GRAY)


def test_samples_that_are_no_colour_are_channels():
    samples = RNG.integers(0, 256, (33, 47, 5), dtype=np.uint8)
    content = tiff(samples, photometric="minisblack", planarconfig="contig")
    with pytest.raises(AmbiguousImageError, match="5 channels"):
        decode_image(content, "x")
    np.testing.assert_array_equal(gray(content, channel="4"), samples[..., 4])


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
            decode_image(tiff(opaque, **options), "x")
        return
    found = decode_image(tiff(opaque, **options), "x")
    np.testing.assert_array_equal(found, pixels.reshape(33, 47, -1))
    opaque[3, 4, -1] -= 1
    with pytest.raises(ImageError, match="transparent"):
        decode_image(tiff(opaque, **options), "x")


def test_what_has_no_common_meaning_is_refused():
    for content in (
        tiff(GRAY.astype(np.float32)),
        tiff(GRAY.astype(np.int8) - 100),
        tiff(DEEP.astype(np.uint32) + 65536),
        tiff(COLOUR, photometric="cielab"),
    ):
        with pytest.raises(ImageError):
            decode_image(content, "x")
    np.testing.assert_array_equal(decode_image(tiff(DEEP.astype(np.uint32)), "x")[..., 0], DEEP)


def test_changed_bytes_never_raise_anything_else():
    whole = bytearray(tiff(COLOUR, tile=(16, 16), photometric="rgb", compression="zlib"))
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
    other.write_bytes(tiff(DEEP // 2))
    content = tiff(DEEP, description=OME_OF_TWO_FILES.format(other=other), metadata=None)
    np.testing.assert_array_equal(decode_image(content, "x")[..., 0], DEEP)
    with pytest.raises(ImageError):
        read_image(content, "x", PlaneSelector(channel="1"))


def test_a_plane_that_is_not_there_is_refused():
    xml = OME_OF_TWO_FILES.replace('<UUID FileName="a.tif">urn:uuid:1</UUID>', "")
    xml = xml[: xml.index('<TiffData IFD="0" FirstC="1"')] + xml[xml.index("</Pixels>") :]
    content = tiff(DEEP, description=xml, metadata=None)
    np.testing.assert_array_equal(gray(content, channel="0"), DEEP)
    with pytest.raises(ImageError):
        read_image(content, "x", PlaneSelector(channel="1"))


def test_choices_are_checked():
    for wrong in ({"page": -1}, {"z": "middle"}, {"channel": "0,1"}, {"channel": ""}):
        with pytest.raises(ConfigurationError):
            PlaneSelector(**wrong)


def stack_of(pages, description=None, **options):
    """Return pages that a description calls one stack, each as it is."""
    stream = BytesIO()
    with tifffile.TiffWriter(stream) as file:
        for number, page in enumerate(pages):
            text = description if number == 0 else None
            kind = {"photometric": "minisblack"} | options | page[1]
            file.write(page[0], metadata=None, contiguous=False, description=text, **kind)
    return stream.getvalue()


def ome_of(planes):
    return (
        '<OME xmlns="http://www.openmicroscopy.org/Schemas/OME/2016-06"><Image ID="Image:0">'
        '<Pixels ID="Pixels:0" DimensionOrder="XYZCT" Type="uint8" SizeX="47" SizeY="33" '
        f'SizeZ="{planes}" SizeC="1" SizeT="1"><Channel ID="Channel:0:0"/>'
        f'<TiffData IFD="0" PlaneCount="{planes}"/></Pixels></Image></OME>'
    )


IMAGEJ_OF_TWO = "ImageJ=1.53\nimages=2\nslices=2\n"


@pytest.mark.parametrize("description", [ome_of(2), IMAGEJ_OF_TWO], ids=["OME", "ImageJ"])
@pytest.mark.parametrize("compression", [None, "zlib"])
@pytest.mark.parametrize(
    "other",
    [
        (np.ascontiguousarray(GRAY.T), {}),
        (np.repeat(GRAY, 2, axis=0), {}),
        (DEEP, {}),
        (GRAY, {"photometric": "miniswhite"}),
    ],
    ids=["turned", "larger", "deeper", "white as 0"],
)
def test_planes_of_different_kinds_are_no_stack(other, compression, description):
    content = stack_of([(GRAY, {}), other], description, compression=compression)
    for z in ("1", "max", "mean"):
        with pytest.raises(ImageError):
            read_image(content, "x", PlaneSelector(z=z))


def test_brightest_is_brightest_where_white_is_0():
    content = tiff(np.stack([GRAY, 255 - GRAY]), photometric="miniswhite")
    np.testing.assert_array_equal(gray(content, z="max"), 255 - np.minimum(GRAY, 255 - GRAY))


def test_a_palette_of_8_bits_is_not_black():
    """libtiff takes the values of a palette for 8 bits if none is larger."""
    palette = RNG.integers(0, 256, (3, 256), dtype=np.uint16)
    palette[0, 0] = 255
    found = decode_image(tiff(GRAY, photometric="palette", colormap=palette), "x")
    np.testing.assert_array_equal(found, np.moveaxis(palette[:, GRAY], 0, 2))


def test_the_table_in_which_imagej_shows_gray_values_is_no_colour():
    table = np.zeros((3, 256), np.uint16)
    table[2] = np.arange(256) * 257
    description = "ImageJ=1.54f\nimages=1\nmin=0.0\nmax=255.0\n"
    options = {"description": description, "metadata": None, "photometric": "palette"}
    picture = read_image(tiff(GRAY, colormap=table, **options), "x")
    np.testing.assert_array_equal(picture.pixels[:, :, 0], GRAY)
    assert "ImageJ" in picture.notes[0]


def test_each_page_has_its_own_palette():
    pages = [Image.fromarray(GRAY % 4).convert("P") for _ in range(2)]
    for number, page in enumerate(pages):
        page.putpalette([0, 0, 0, 200, 10 * number, 0, 0, 100, 0, 0, 0, 50])
    content = saved(pages[0], "TIFF", save_all=True, append_images=pages[1:])
    for number, page in enumerate(pages):
        found = read_image(content, "x", PlaneSelector(page=number)).pixels
        np.testing.assert_array_equal(found, np.asarray(page.convert("RGB")))


@pytest.mark.parametrize("shape", [[10**7, 33, 47], [2, 33, 47]])
@pytest.mark.parametrize("compression", [None, "zlib"])
def test_planes_that_are_stated_and_not_there(shape, compression):
    content = tiff(
        GRAY, description=json.dumps({"shape": shape, "axes": "TYX"}), compression=compression
    )
    with pytest.raises(ImageError):
        read_image(content, "x", PlaneSelector(page=1))


@pytest.mark.full
def test_a_choice_among_many_pages_lists_none_of_them():
    xml = ome_of(1).replace('SizeT="1"', 'SizeT="50000"')
    content = tiff(GRAY, metadata=None, description=xml)
    tracemalloc.start()
    found = gray(content, page=0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    np.testing.assert_array_equal(found, GRAY)
    assert peak < 6e6


def test_many_samples_are_counted_before_they_are_decoded():
    content = tiff(np.zeros((40, 40, 200), np.uint8), photometric="minisblack", planarconfig=1)
    choice = PlaneSelector(channel="7")
    assert read_image(content, "x", choice).pixels.shape == (40, 40, 1)
    with pytest.raises(ImageError):
        read_image(content, "x", choice, max_pixels=40 * 40)


@pytest.mark.parametrize("compression", [None, "zlib"])
def test_two_axes_without_a_name(compression):
    stacks = RNG.integers(0, 256, (2, 3, 33, 47), dtype=np.uint8)
    content = tiff(stacks, photometric="minisblack", compression=compression)
    for page in range(6):
        np.testing.assert_array_equal(gray(content, page=page), stacks[divmod(page, 3)])
    np.testing.assert_array_equal(gray(content, z="max", channel="2"), stacks[:, 2].max(axis=0))
    with pytest.raises(ImageError):
        read_image(content, "x", PlaneSelector(page=6))


@pytest.mark.parametrize(("pages", "back_to"), [(1, 0), (2, 1), (3, 1), (150, 149)])
def test_pages_that_lead_back_are_not_followed_for_ever(pages, back_to):
    content = bytearray(stack_of([(GRAY[:4, :4], {})] * pages))
    places, links = [], []
    (at,) = struct.unpack_from("<I", content, 4)
    while at:
        places.append(at)
        (tags,) = struct.unpack_from("<H", content, at)
        links.append(at + 2 + 12 * tags)
        (at,) = struct.unpack_from("<I", content, links[-1])
    assert len(places) == pages
    struct.pack_into("<I", content, links[-1], places[back_to])
    with pytest.raises(ImageError):
        read_image(bytes(content), "x", PlaneSelector(page=0))


def test_an_empty_page_that_leads_to_itself():
    content = bytearray(tiff(GRAY, metadata=None)) + bytes(16)
    at = len(content) - 16 + len(content) % 2
    (first,) = struct.unpack_from("<I", content, 4)
    (tags,) = struct.unpack_from("<H", content, first)
    struct.pack_into("<I", content, first + 2 + 12 * tags, at)
    struct.pack_into("<HI", content, at, 0, at)
    with pytest.raises(ImageError):
        read_image(bytes(content), "x", PlaneSelector(page=0))


def test_a_stack_of_no_known_type():
    content = bytearray(tiff(np.stack([GRAY, GRAY]), photometric="minisblack", compression="zlib"))
    with tifffile.TiffFile(BytesIO(content)) as file:
        place = file.pages.first.tags["BitsPerSample"].valueoffset
    content[place] = 77
    with pytest.raises(ImageError):
        read_image(bytes(content), "x", PlaneSelector(page=0))


def test_a_slide_of_aperio_is_its_baseline():
    """Levels, thumbnail, label and overview of a file do not count."""
    slide = RNG.integers(0, 256, (512, 768, 3), dtype=np.uint8)
    head = "Aperio Image Library v11.2.1 \r\n768x512"
    stream = BytesIO()
    with tifffile.TiffWriter(stream) as file:
        options = {"photometric": "rgb", "compression": "zlib", "metadata": None, "software": False}
        told = f"{head} (256x256) JPEG/RGB Q=70|AppMag = 20|MPP = 0.4990|Left = 3"
        file.write(slide, tile=(256, 256), description=told, **options)
        strips = options | {"rowsperstrip": 16}
        file.write(slide[::4, ::4].copy(), description=f"{head} -> 192x128 - ", **strips)
        file.write(slide[::2, ::2].copy(), tile=(256, 256), description=told, **options)
        for kind, name in ((1, "label"), (9, "macro")):
            small = slide[:64, :96].copy()
            file.write(small, subfiletype=kind, description=f"{head} {name} 96x64", **strips)
    assert check_regions(stream, slide).pixel_size == (0.499, 0.499)
