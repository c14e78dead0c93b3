import errno
import os
import struct
import zlib
from io import BytesIO

import cv2
import numpy as np
import pytest
from PIL import Image, ImageOps

from data_prep.images import open_image as open_image_module
from data_prep.images.multifile_images import Folder
from data_prep.images.open_image import decode_image, open_image, read_image
from data_prep.images.plane_selection import PlaneSelector, as_channels
from distkeras_grid.errors import (
    AmbiguousImageError,
    ImageError,
    StorageError,
    UnreadableImageError,
)
from tests.data_prep.image_checks import saved

RNG = np.random.default_rng(3)
GRAY = RNG.integers(0, 256, (20, 31), dtype=np.uint8)
COLOUR = RNG.integers(0, 256, (20, 31, 3), dtype=np.uint8)
DEEP = RNG.integers(0, 65536, (20, 31), dtype=np.uint16)
DEEP_COLOUR = RNG.integers(0, 65536, (20, 31, 3), dtype=np.uint16)


def encode_deep(pixels):
    return cv2.imencode(".png", pixels[..., ::-1] if pixels.ndim == 3 else pixels)[1].tobytes()


@pytest.mark.parametrize("format", ["PNG", "BMP"])
@pytest.mark.parametrize("pixels", [GRAY, COLOUR])
def test_lossless_formats(format, pixels):
    found = decode_image(saved(pixels, format), "x")
    np.testing.assert_array_equal(found, pixels.reshape(20, 31, -1))
    assert found.flags.c_contiguous


def test_jpeg():
    smooth = cv2.GaussianBlur(COLOUR, (0, 0), 5)
    found = decode_image(saved(smooth, "JPEG", quality=95), "x")
    assert found.shape == (20, 31, 3)
    assert np.abs(found.astype(int) - smooth).mean() < 4


@pytest.mark.parametrize("pixels", [DEEP, DEEP_COLOUR])
def test_16_bits_are_kept(pixels):
    found = decode_image(encode_deep(pixels), "x")
    assert found.dtype == np.uint16
    np.testing.assert_array_equal(found, pixels.reshape(20, 31, -1))


def test_gray_saved_as_colour_is_gray():
    found = decode_image(saved(np.repeat(GRAY[..., None], 3, 2)), "x")
    np.testing.assert_array_equal(found, GRAY[..., None])
    deep = decode_image(encode_deep(np.repeat(DEEP[..., None], 3, 2)), "x")
    np.testing.assert_array_equal(deep, DEEP[..., None])


def test_opaque_alpha_is_dropped_and_transparency_refused():
    opaque = np.dstack([COLOUR, np.full((20, 31), 255, np.uint8)])
    np.testing.assert_array_equal(decode_image(saved(opaque), "x"), COLOUR)
    opaque[3, 4, 3] = 254
    with pytest.raises(ImageError, match=r"x\.png.*alpha from 254"):
        decode_image(saved(opaque), "x.png")
    gray = Image.fromarray(GRAY).convert("LA")
    np.testing.assert_array_equal(decode_image(saved(gray), "x"), GRAY[..., None])
    deep = np.dstack([DEEP_COLOUR, np.full((20, 31), 65535, np.uint16)])
    png = cv2.imencode(".png", deep[..., [2, 1, 0, 3]])[1].tobytes()
    np.testing.assert_array_equal(decode_image(png, "x"), DEEP_COLOUR)


def write_png(pixels, transparent):
    """Write 16-bit PNG with a transparent colour, which neither Pillow nor OpenCV writes."""
    height, width = pixels.shape[:2]
    colour = 0 if pixels.ndim == 2 else 2
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in pixels)
    chunks = {
        b"IHDR": struct.pack(">IIBBBBB", width, height, 16, colour, 0, 0, 0),
        b"tRNS": np.asarray(transparent).astype(">u2").tobytes(),
        b"IDAT": zlib.compress(rows),
        b"IEND": b"",
    }
    written = b"\x89PNG\r\n\x1a\n"
    for kind, content in chunks.items():
        crc = struct.pack(">I", zlib.crc32(kind + content))
        written += struct.pack(">I", len(content)) + kind + content + crc
    return written


@pytest.mark.parametrize("pixels", [DEEP, DEEP_COLOUR])
def test_16_bit_png_with_a_transparent_colour(pixels):
    unused = 40_000 + np.arange(1 if pixels.ndim == 2 else 3)
    pixels = np.where(pixels == 40_000, 1, pixels).astype(np.uint16)
    found = decode_image(write_png(pixels, unused), "x")
    assert found.dtype == np.uint16
    np.testing.assert_array_equal(found, pixels.reshape(20, 31, -1))
    with pytest.raises(ImageError, match=r"x\.png"):
        decode_image(write_png(pixels, pixels[7, 9]), "x.png")


def test_pictures_beside_the_first_are_refused():
    frames = [Image.fromarray(GRAY), Image.fromarray(255 - GRAY)]
    for format in ("PNG", "TIFF"):
        several = saved(frames[0], format, save_all=True, append_images=frames[1:])
        with pytest.raises(AmbiguousImageError, match="x holds 2"):
            decode_image(several, "x")
        second = read_image(several, "x", PlaneSelector(page=1)).pixels
        np.testing.assert_array_equal(second[..., 0], 255 - GRAY)
        with pytest.raises(ImageError, match="x has 2 pages"):
            read_image(several, "x", PlaneSelector(page=2))


def test_the_second_picture_of_a_jpeg_is_taken():
    frames = [Image.fromarray(np.full((16, 16), value, np.uint8)) for value in (10, 200)]
    several = saved(frames[0], "MPO", save_all=True, append_images=frames[1:])
    for page, value in enumerate((10, 200)):
        assert (read_image(several, "x", PlaneSelector(page=page)).pixels == value).all()


@pytest.mark.parametrize("choice", [PlaneSelector(), PlaneSelector(page=0), PlaneSelector(page=1)])
@pytest.mark.parametrize("hidden", [False, True])
def test_several_pictures_in_a_16_bit_png_are_refused(choice, hidden):
    """The first one was returned for each page, or the second one for page 0."""
    frames = [Image.fromarray(np.full((4, 5), value, np.uint16)) for value in (3, 1000, 5000)]
    several = saved(
        *(frames[0], "PNG"), save_all=True, append_images=frames[1:], default_image=hidden
    )
    with pytest.raises(ImageError, match=r"x\.png") as raised:
        read_image(several, "x.png", choice)
    # No page that one could choose instead.
    assert not isinstance(raised.value, AmbiguousImageError)


def test_one_channel_of_a_colour_image():
    for format in ("PNG", "TIFF"):
        for text, number in (("green", 1), ("2", 2)):
            found = read_image(saved(COLOUR, format), "x", PlaneSelector(channel=text)).pixels
            np.testing.assert_array_equal(found, COLOUR[..., number : number + 1])
        swapped = read_image(
            saved(COLOUR, format), "x", PlaneSelector(channel="blue,green,red")
        ).pixels
        np.testing.assert_array_equal(swapped, COLOUR[..., ::-1])
        with pytest.raises(ImageError, match="channel 3"):
            read_image(saved(COLOUR, format), "x", PlaneSelector(channel="3"))


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("pixels", [GRAY, COLOUR])
def test_tiff_is_upright_as_pillow_has_it(orientation, pixels):
    exif = Image.Exif()
    exif[274] = orientation
    content = saved(pixels, "TIFF", exif=exif)
    with Image.open(BytesIO(content)) as image:
        upright = np.asarray(ImageOps.exif_transpose(image))
    np.testing.assert_array_equal(decode_image(content, "x"), upright.reshape(found_shape(upright)))


def found_shape(pixels):
    return (*pixels.shape[:2], 1 if pixels.ndim == 2 else 3)


@pytest.mark.parametrize("pixels", [GRAY, DEEP])
def test_orientation_of_a_png_is_applied(pixels):
    exif = Image.Exif()
    exif[274] = 6  # turn clockwise to see it upright
    found = decode_image(saved(pixels, exif=exif), "x")
    np.testing.assert_array_equal(found[..., 0], np.rot90(pixels, -1))


def test_palette_and_bilevel():
    palette = Image.fromarray(COLOUR).convert("P", palette=Image.Palette.ADAPTIVE)
    found = decode_image(saved(palette), "x")
    np.testing.assert_array_equal(found, np.asarray(palette.convert("RGB")))
    bilevel = Image.fromarray(GRAY > 127)
    np.testing.assert_array_equal(
        decode_image(saved(bilevel), "x")[..., 0], (GRAY > 127) * np.uint8(255)
    )


@pytest.mark.parametrize(
    "content", [b"", b"not an image", b"\x89PNG\r\n\x1a\n", b"GIF89a" + bytes(50)]
)
def test_what_is_no_image_names_the_file(content):
    with pytest.raises(ImageError, match=r"data/a\.png"):
        decode_image(content, "data/a.png")


@pytest.mark.full
def test_pixels_are_counted_before_they_are_decoded():
    bomb = saved(Image.new("1", (20_000, 15_000)))
    assert len(bomb) < 100_000
    with pytest.raises(ImageError, match=r"bomb"):
        decode_image(bomb, "bomb")
    with pytest.raises(ImageError, match="x has 31x20 pixels"):
        decode_image(saved(GRAY), "x", max_pixels=500)


def test_floats_and_large_integers_are_refused():
    with pytest.raises(ImageError, match="floating-point"):
        decode_image(saved(Image.fromarray(GRAY.astype(np.float32)), "TIFF"), "x")
    with pytest.raises(ImageError, match="0 to 70000"):
        decode_image(saved(Image.fromarray(np.array([[0, 70000]], np.int32)), "TIFF"), "x")


def test_channels():
    np.testing.assert_array_equal(as_channels(COLOUR, 3), COLOUR)
    np.testing.assert_array_equal(as_channels(GRAY[..., None], 3), np.dstack([GRAY] * 3))
    gray = as_channels(COLOUR, 1)
    pillow = np.asarray(Image.fromarray(COLOUR).convert("L"))
    assert gray.shape == (20, 31, 1)
    assert np.abs(gray[..., 0].astype(int) - pillow).max() <= 1
    assert as_channels(DEEP_COLOUR, 1).dtype == np.uint16


def caused(error, cause):
    error.__cause__ = cause
    return error


FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
FAILURES = {
    "full disk": FULL,
    "bad sector": OSError(errno.EIO, os.strerror(errno.EIO)),
    "mount that is gone": OSError(errno.ESTALE, os.strerror(errno.ESTALE)),
    "memory": MemoryError(),
    "lost block": StorageError("Cannot read /raw/x: BlockMissingException."),
    "told by a library": caused(ValueError("cannot write"), FULL),
}
DAMAGES = {
    "Pillow's": OSError("image file is truncated"),
    "position that does not exist": OSError(errno.EINVAL, os.strerror(errno.EINVAL)),
    "damage": ValueError("bad"),
}


@pytest.mark.parametrize("error", [*FAILURES.values(), *DAMAGES.values()], ids=repr)
def test_what_a_disk_or_memory_does_is_no_damage_of_the_image(monkeypatch, error):
    def fail(*_):
        raise error

    monkeypatch.setattr(open_image_module, "PillowFile", fail)
    with pytest.raises(ImageError, match=r"x\.png") as caught:
        open_image(BytesIO(saved(GRAY)), "x.png")
    assert isinstance(caught.value, UnreadableImageError) == (error in FAILURES.values())


def test_a_folder_that_is_gone_after_it_was_opened_is_told(tmp_path):
    """A night ended, because the size of an OME-Zarr was asked for outside of what tells damage."""
    with pytest.raises(UnreadableImageError, match=r"x\.zarr"):
        open_image(Folder(tmp_path / "x.zarr"), "x.zarr")
