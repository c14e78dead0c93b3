from __future__ import annotations

import struct

import pytest

from distkeras_grid.errors import SandboxError
from distkeras_grid.sandbox.keytabs import BEGINNING, WEAK, only

AES = 17


def entry(name: str, cipher: int = AES, key: bytes = b"sixteen bytes...") -> bytes:
    parts = name.split("/")
    text = struct.pack(">H", len(parts))
    for part in ("SANDBOX.LOCAL", *parts):
        text += struct.pack(">H", len(part)) + part.encode()
    text += struct.pack(">IIBHH", 1, 1795455762, 1, cipher, len(key)) + key
    return struct.pack(">i", len(text)) + text


def test_everybody_gets_their_own_keys_and_no_weak_ones() -> None:
    hole = struct.pack(">i", -3) + b"xyz"
    everybodys = b"".join(
        [BEGINNING, entry("ada"), entry("ada", WEAK), hole, entry("hdfs/localhost")]
    )
    assert only(everybodys, ["ada"]) == BEGINNING + entry("ada")
    assert only(everybodys, ["hdfs/localhost"]) == BEGINNING + entry("hdfs/localhost")


def test_who_has_no_key_is_named() -> None:
    with pytest.raises(SandboxError, match="grace"):
        only(BEGINNING + entry("ada"), ["ada", "grace"])
    with pytest.raises(SandboxError, match="ada"):
        only(BEGINNING + entry("ada", WEAK), ["ada"])


@pytest.mark.parametrize("length", range(1, len(BEGINNING + entry("ada"))))
def test_a_file_that_is_still_written_is_none(length: int) -> None:
    with pytest.raises(SandboxError):
        only((BEGINNING + entry("ada"))[:length], ["ada"])


@pytest.mark.parametrize("content", [b"", b"\x05\x01", b"\x05\x02\x00\x00\x00\x02\x00\x09"])
def test_other_files_are_none(content: bytes) -> None:
    with pytest.raises(SandboxError):
        only(content, ["ada"])
