"""Damaged files of each format: refused, or read as the undamaged file is.

Bytes that are missing are found in all formats. Bytes that are changed are found for certain where
the format has checksums, and otherwise only if they lead to a code that does not exist.
"""

import struct
from io import BytesIO

import cv2
import imagecodecs
import numpy as np
import pytest
import tifffile
from PIL import Image

from data_prep.images.jpeg import check_whole
from data_prep.images.open_image import decode_image
from distkeras_grid.errors import ImageError

RNG = np.random.default_rng(5)
COLOUR = cv2.GaussianBlur(RNG.integers(0, 256, (96, 128, 3), dtype=np.uint8), (0, 0), 1)
GRAY = COLOUR[:, :, 0].copy()
DEEP = GRAY.astype(np.uint16) * 257
ROWS = {"rowsperstrip": 32}
TILES = {"tile": (64, 64)}


def by_pillow(pixels, kind, mode=None, **options):
    stream = BytesIO()
    image = Image.fromarray(pixels)
    (image.convert(mode) if mode else image).save(stream, kind, **options)
    return stream.getvalue()


def tiff(pixels, **options):
    stream = BytesIO()
    options = {"photometric": "rgb" if pixels.ndim == 3 else "minisblack", **options}
    tifffile.imwrite(stream, pixels, **options)
    return stream.getvalue()


LOSSY = {"quality": 90}
# The formats by what finds changed bytes: a checksum, or nothing for certain.
CHECKED = {
    "png": by_pillow(COLOUR, "PNG"),
    "png of 16 bits": cv2.imencode(".png", DEEP)[1].tobytes(),
    "png of a palette": by_pillow(COLOUR, "PNG", "P"),
    "tiff zlib": tiff(COLOUR, compression="zlib", **ROWS),
    "tiff zlib in tiles": tiff(DEEP, compression="zlib", predictor=True, **TILES),
    "tiff lzma": tiff(COLOUR, compression="lzma", **ROWS),
    "tiff png": tiff(COLOUR, compression="png", **ROWS),
    "tiff lerc": tiff(COLOUR, compression="lerc", **TILES),
}
UNCHECKED = {
    "bmp": by_pillow(COLOUR, "BMP"),
    "jpeg": by_pillow(COLOUR, "JPEG", **LOSSY),
    "jpeg gray": by_pillow(GRAY, "JPEG", **LOSSY),
    "jpeg progressive": by_pillow(COLOUR, "JPEG", progressive=True, **LOSSY),
    "jpeg with restarts": by_pillow(COLOUR, "JPEG", restart_marker_rows=1, **LOSSY),
    "jpeg cmyk": by_pillow(COLOUR, "JPEG", "CMYK", **LOSSY),
    "tiff": tiff(COLOUR, **ROWS),
    "tiff in tiles": tiff(DEEP, **TILES),
    "tiff in one strip": tiff(DEEP),
    "tiff lzw": tiff(COLOUR, compression="lzw", **ROWS),
    "tiff packbits": tiff(GRAY, compression="packbits", **ROWS),
    "tiff zstd": tiff(COLOUR, compression="zstd", **TILES),
    "tiff jpeg": tiff(COLOUR, compression="jpeg", **ROWS),
    "tiff jpeg in tiles": tiff(COLOUR, compression="jpeg", **TILES),
    "tiff jpeg of 12 bits": tiff(
        DEEP >> 4, compression="jpeg", compressionargs={"bitspersample": 12}, **ROWS
    ),
    "tiff jpeg 2000": tiff(COLOUR, compression="jpeg2000", **TILES),
    "tiff jpeg xl": tiff(COLOUR, compression="jpegxl", **TILES),
    "tiff jpeg xr": tiff(COLOUR, compression="jpegxr", **ROWS),
    "tiff webp": tiff(COLOUR, compression="webp", **TILES),
    "tiff fax 3": by_pillow(GRAY, "TIFF", "1", compression="group3", strip_size=16 * 32),
    "tiff fax 4": by_pillow(GRAY, "TIFF", "1", compression="group4", strip_size=16 * 32),
    "tiff fax rle": by_pillow(GRAY, "TIFF", "1", compression="tiff_ccitt", strip_size=16 * 32),
}
FORMATS = CHECKED | UNCHECKED
# A last value depends on the last byte, and no mark of the end is required.
ONE_BYTE_MATTERS = ("tiff lzw",)
# Neither lengths nor checksums: only what is cut off is found, not what is missing before.
CUTS_ALONE = ("tiff fax 3", "tiff fax 4", "tiff fax rle")


def outcome(damaged, whole):
    """Return what became of damaged bytes; nothing but an ImageError may be raised."""
    try:
        found = decode_image(damaged, "x")
    except ImageError as error:
        assert str(error).startswith("x ")  # noqa: PT017
        assert "IndexError" not in str(error)  # noqa: PT017
        return "refused"
    same = found.shape == whole.shape and found.dtype == whole.dtype
    return "equal" if same and (found == whole).all() else "wrong"


def pieces(content):
    """Return offsets and lengths of the pieces of a TIFF, and their places in its tags."""
    with tifffile.TiffFile(BytesIO(content)) as file:
        page = file.pages.first
        tags = [tag for tag in page.tags if tag.code in (273, 279, 324, 325)]
        forms = [("<H", 2) if tag.dtype == 3 else ("<I", 4) for tag in tags]
        forms = [
            (form, [tag.valueoffset + size * n for n in range(tag.count)])
            for (form, size), tag in zip(forms, tags, strict=True)
        ]
        return list(zip(page.dataoffsets, page.databytecounts, strict=True)), *forms


def with_piece(content, number, piece):
    """Return a TIFF with other bytes as one piece, which is put behind all others."""
    _, (at_form, at), (count_form, counts) = pieces(content)
    changed = bytearray(content) + piece
    struct.pack_into(at_form, changed, at[number], len(content))
    struct.pack_into(count_form, changed, counts[number], len(piece))
    return bytes(changed)


def with_count(content, number, count):
    _, _, (form, places) = pieces(content)
    changed = bytearray(content)
    struct.pack_into(form, changed, places[number], count)
    return bytes(changed)


def code(name, content):
    """Return where the code of the pixels starts and ends in the file."""
    if name.startswith("tiff"):
        found = pieces(content)[0]
        return found[-1][0], sum(found[-1])
    if name.startswith("jpeg"):
        return content.find(b"\xff\xda") + 20, len(content) - 2
    return (content.find(b"IDAT") + 8 if name.startswith("png") else 54), len(content) - 16


def missing(name, content):
    """Yield files in which bytes are missing, with and without a mark of the end."""
    start, end = code(name, content)
    # The last bytes may be the values of tags that do not matter, or an end mark.
    for cut in range(0, len(content) - 12, max(1, len(content) // 40)):
        yield content[:cut]
    for share in (0.2, 0.5, 0.8):
        at = start + int(share * (end - start))
        yield content[:at] + content[at + (end - start) // 8 :]
        if name.startswith("jpeg"):
            yield content[:at] + b"\xff\xd9"
        if name.startswith("png"):
            yield content[:at] + content[-12:]
    if "progressive" in name:
        scans = [at for at in range(len(content)) if content[at : at + 2] == b"\xff\xda"]
        yield content[: content.rfind(b"\xff\xc4", 0, scans[-1])] + b"\xff\xd9"
        yield content[: scans[1]] + content[scans[2] :]
    if name.startswith("tiff"):
        yield from missing_in_pieces(name, content)


def missing_in_pieces(name, content):
    stored = pieces(content)[0]
    for number in (0, len(stored) - 1):
        at, count = stored[number]
        piece = content[at : at + count]
        for left in (1, count // 4, count // 2, count * 3 // 4, count - 9):
            yield with_count(content, number, left)
            yield with_piece(content, number, piece[:left])
            if name not in CUTS_ALONE:
                yield with_piece(content, number, piece[:left] + b"\xff\xd9")
        if name not in ONE_BYTE_MATTERS:
            yield with_count(content, number, count - 1)
        for share in () if name in CUTS_ALONE else (3, 5, 8):
            yield with_piece(content, number, piece[: count // share] + piece[count * 2 // share :])
        yield with_count(content, number, 0)
        yield with_count(content, number, count + 1)
        yield with_count(content, number, min(65535, count * 2))


def changed(name, content):
    """Yield files of which some bytes are not what they were."""
    start, end = code(name, content)
    rng = np.random.default_rng(6)
    for at in rng.integers(start, end, 12):
        flipped = bytearray(content)
        flipped[at] ^= 1 << int(rng.integers(8))
        yield bytes(flipped)
    for byte in (b"\0", b"\xff"):
        middle, count = (start + end) // 2, (end - start) // 8
        yield content[:middle] + byte * count + content[middle + count :]


@pytest.mark.parametrize("name", FORMATS)
def test_no_pixel_is_made_up_for_bytes_that_are_missing(name):
    whole = decode_image(FORMATS[name], "x")
    found = [outcome(damaged, whole) for damaged in missing(name, FORMATS[name])]
    assert "wrong" not in found, found
    assert found.count("refused") > 20


@pytest.mark.parametrize("name", FORMATS)
def test_changed_bytes_are_found_by_checksums(name):
    whole = decode_image(FORMATS[name], "x")
    found = [outcome(damaged, whole) for damaged in changed(name, FORMATS[name])]
    assert "wrong" not in found or name in UNCHECKED, found


@pytest.mark.parametrize("options", [ROWS, TILES], ids=["strips", "tiles"])
@pytest.mark.parametrize(("height", "width"), [(16, 64), (129, 129), (2000, 2000)])
def test_a_piece_that_has_another_size_inside_is_refused(options, height, width):
    content = tiff(GRAY, compression="jpeg", metadata=None, **options)
    piece = imagecodecs.jpeg8_encode(np.full((height, width), 100, np.uint8))
    with pytest.raises(ImageError, match=f"has a piece of {width}x{height} pixels"):
        decode_image(with_piece(content, 0, piece), "x")


def test_a_count_of_0_is_that_of_an_uncompressed_piece():
    for name in ("tiff", "tiff in tiles", "tiff in one strip"):
        whole = FORMATS[name]
        found = decode_image(with_count(whole, 0, 0), "x")
        np.testing.assert_array_equal(found, decode_image(whole, "x"))


def test_a_tiff_whose_pages_are_listed_behind_its_end_is_cut_short():
    """Many programs write the list last, and most copies that fail end before it."""
    content = by_pillow(COLOUR, "TIFF")
    with pytest.raises(ImageError, match="x is cut short"):
        decode_image(b"II*\0" + struct.pack("<I", len(content)) + content[8:], "x")


@pytest.mark.parametrize("options", [{"bitspersample": 16}, {"bitspersample": 8}])
@pytest.mark.parametrize("pixels", [DEEP, COLOUR], ids=["gray", "colour"])
def test_lossless_jpeg(pixels, options):
    pixels = pixels.astype(np.uint16 if options["bitspersample"] == 16 else np.uint8)
    content = imagecodecs.jpeg8_encode(pixels, lossless=True, **options)
    check_whole(content)
    with pytest.raises(ValueError, match="premature end"):
        check_whole(content[: len(content) // 2] + b"\xff\xd9")


@pytest.mark.parametrize("orientation", [1, 6])
def test_a_thumbnail_in_a_jpeg_is_no_part_of_it(orientation):
    exif = Image.Exif()
    exif[274] = orientation
    stream = BytesIO()
    Image.fromarray(COLOUR).save(stream, "JPEG", exif=exif, comment=FORMATS["jpeg"][:9000])
    assert (
        decode_image(stream.getvalue(), "x").shape == ((96, 128, 3), (128, 96, 3))[orientation > 1]
    )


@pytest.mark.parametrize("depth", ["8", "16"])
@pytest.mark.parametrize("kind", ["profile", "text"])
def test_a_png_with_a_large_profile_or_text(kind, depth):
    from PIL.PngImagePlugin import PngInfo

    more = RNG.bytes(1_500_000)
    text = PngInfo()
    text.add_text("a", more.hex(), zip=True)
    options = {"icc_profile": more} if kind == "profile" else {"pnginfo": text}
    pixels = DEEP if depth == "16" else COLOUR
    found = decode_image(by_pillow(pixels, "PNG", **options), "x")
    np.testing.assert_array_equal(np.squeeze(found), pixels)
