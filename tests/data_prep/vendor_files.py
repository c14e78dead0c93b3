"""Files of microscopes whose libraries only read, written as small as those libraries take them."""

from __future__ import annotations

import struct

import numpy as np

ND2_MAGIC, ND2_HEADER = 0x0ABECEDA, 4096
ND2_START, ND2_END = b"ND2 FILE SIGNATURE CHUNK NAME01!", b"ND2 CHUNK MAP SIGNATURE 0000001!"
# Numbers that DigitalMicrograph has for types.
KINDS = {"uint8": 6, "uint16": 10, "int32": 7, "float32": 2}
ND2_MAP = b"ND2 FILEMAP SIGNATURE NAME 0001!"


def write_nd2(path, frames, names=("DAPI",), loops=(), calibration=0.25, recorded=None):
    """Write an ND2 file.

    `frames` have the shape [frame, height, width, component]; `loops` are pairs of "T" or "Z" and
    a length, outermost first.
    """
    count, height, width, components = frames.shape
    bits = 8 * frames.itemsize
    planes = {
        f"a{n}": {
            **{"sDescription": name, "uiCompCount": components // len(names)},
            # The library asks for them.
            **{"pFluorescentProbe": {"m_uiCount": 0}},
        }
        for n, name in enumerate(names)
    }
    chunks = {
        b"ImageAttributesLV!": _variant(
            {
                "SLxImageAttributes": {
                    **{"uiWidth": width, "uiHeight": height, "uiComp": components},
                    **{"uiWidthBytes": width * components * frames.itemsize, "eCompression": 2},
                    **{"uiBpcInMemory": bits, "uiBpcSignificant": min(bits, 12)},
                    "uiSequenceCount": count if recorded is None else recorded,
                }
            }
        ),
        b"ImageMetadataSeqLV|0!": _variant(
            {
                "SLxPictureMetadata": {
                    **{"bCalibrated": calibration is not None, "dCalibration": calibration or 1.0},
                    "sPicturePlanes": {"uiCount": len(names), "sPlaneNew": planes},
                }
            }
        ),
        **{f"ImageDataSeq|{n}!".encode(): bytes(8) + f.tobytes() for n, f in enumerate(frames)},
    }
    experiment: dict[str, object] = {}
    for axis, length in reversed(loops):
        kind = 4 if axis == "Z" else 1
        numbers = dict.fromkeys(
            ("dStart", "dPeriod", "dDuration", "dZStep", "dZLow", "dZHigh"), 1.0
        )
        numbers |= dict.fromkeys(("dMinPeriodDiff", "dMaxPeriodDiff", "dAvgPeriodDiff"), 1.0)
        level = {"eType": kind, "uLoopPars": {"uiCount": length, **numbers}}
        inner = {"ppNextLevelEx": {"i0000000000": experiment}} if experiment else {}
        experiment = level | inner
    if experiment:
        chunks[b"ImageMetadataLV!"] = _variant({"SLxExperiment": experiment})
    content, places = _chunk(ND2_START, b"Ver3.0".ljust(64, b"\0"), len(ND2_START)), b""
    content = content.ljust(ND2_HEADER, b"\0")
    for name, data in chunks.items():
        places += name + struct.pack("<QQ", len(content), len(data))
        content += _chunk(name, data, ND2_HEADER - 16 if b"Data" not in name else 4072)
    end = ND2_END + struct.pack("<Q", len(content))
    path.write_bytes(content + _chunk(ND2_MAP, places + end, len(ND2_MAP)) + end)
    return path


def _chunk(name, data, room):
    return struct.pack("<IIQ", ND2_MAGIC, room, len(data)) + name.ljust(room, b"\0") + data


def _variant(values):
    """Encode values as Nikon's binary variant."""
    content = b""
    for name, value in values.items():
        kind, data = _value(value)
        text = (name + "\0").encode("utf-16-le")
        header = struct.pack("<BB", kind, len(text) // 2) + text
        if kind == 11:
            inside, items = data
            length = len(header) + 12 + len(inside)
            data = struct.pack("<IQ", items, length) + inside + bytes(8 * items)
        content += header + data
    return content


def _value(value):
    if isinstance(value, bool):
        return 1, struct.pack("<B", value)
    if isinstance(value, int):
        return 3, struct.pack("<I", value)
    if isinstance(value, float):
        return 6, struct.pack("<d", value)
    if isinstance(value, str):
        return 8, (value + "\0").encode("utf-16-le")
    return 11, (_variant(value), len(value))


def write_dm(path, pixels, size=0.25, units="nm"):
    """Write a dm3 or dm4 file, by the ending of its name.

    `pixels` are [height, width], [image, height, width], or [height, width, 3] of uint8.
    """
    from nionswift_plugin.DM_IO import parse_dm3

    kind = KINDS[pixels.dtype.name]
    if pixels.dtype == np.uint8 and pixels.ndim == 3:
        # Blue, green, red, and a byte that nobody reads.
        opaque = np.full((*pixels.shape[:2], 1), 255, np.uint8)
        pixels = np.ascontiguousarray(np.concatenate([pixels[:, :, ::-1], opaque], axis=2))
        kind, pixels = 23, pixels.view(np.int32)[:, :, 0]
    axes = [(size, units), (size, units), (1.0, "")][: pixels.ndim]
    calibrations = [{"Origin": 0.0, "Scale": step, "Units": unit} for step, unit in axes]
    image = {
        "Data": parse_dm3.DataChunkWriter(pixels),
        "DataType": kind,
        "PixelDepth": pixels.itemsize,
        "Dimensions": list(pixels.shape[::-1]),
        "Calibrations": {
            "Dimension": calibrations,
            "Brightness": {"Origin": 0.0, "Scale": 1.0, "Units": ""},
        },
    }
    with path.open("wb") as file:
        content = {"ImageList": [{"ImageData": image, "ImageTags": {"Meta Data": {"Format": "x"}}}]}
        parse_dm3.dm_write_header(file, int(path.suffix[-1]), content)
    return path
