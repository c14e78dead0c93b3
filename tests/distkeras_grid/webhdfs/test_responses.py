from __future__ import annotations

import json

import pytest

from distkeras_grid.webhdfs.responses import (
    FileBlock,
    RemoteError,
    decode_blocks,
    decode_checksum,
    decode_error,
    decode_listing,
    decode_status,
    decode_truth,
)

STATUS = {
    "type": "FILE",
    "length": 3,
    "modificationTime": 1500,
    "permission": "644",
    "owner": "ada",
    "group": "lab",
}


def listing(*names: str) -> bytes:
    found = [{**STATUS, "pathSuffix": name} for name in names]
    return json.dumps({"FileStatuses": {"FileStatus": found}}).encode()


@pytest.mark.parametrize(("field", "opaque"), [("encBit", True), ("ecBit", True), ("snap", False)])
def test_a_status_tells_whether_the_checksum_is_that_of_the_bytes(field: str, opaque: bool) -> None:
    answer = json.dumps({"FileStatus": {**STATUS, field: True}}).encode()
    status = decode_status("/raw/a b", answer)
    assert (status.name, status.size, status.modified, status.opaque) == ("a b", 3, 1.5, opaque)


def test_a_listing_is_sorted_and_that_of_a_file_is_itself() -> None:
    assert [each.path for each in decode_listing("/", listing("b", "a"))] == ["/a", "/b"]
    assert [each.path for each in decode_listing("/raw/x", listing(""))] == ["/raw/x"]


@pytest.mark.parametrize("name", ["..", ".", "../x", "a/b", "/etc/passwd", "a\0b"])
def test_a_name_that_leads_elsewhere_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="a file name in /raw is"):
        decode_listing("/raw", listing("fine", name))


@pytest.mark.parametrize(
    "answer", [b"", b"<html>", b"[]", b"{}", b'{"FileStatus": {"length": 3}}', b"\xff"]
)
def test_what_is_no_answer_is_refused(answer: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  msgspec's wording
        decode_status("/", answer)
    with pytest.raises(ValueError):  # noqa: PT011
        decode_listing("/", answer)
    with pytest.raises(ValueError):  # noqa: PT011
        decode_checksum(answer)
    with pytest.raises(ValueError):  # noqa: PT011
        decode_blocks(answer)
    assert decode_error(answer) is None


def test_blocks_are_decoded() -> None:
    told = {"offset": 128, "length": 5, "hosts": ["node-1"], "corrupt": True, "names": ["x:1"]}
    answer = json.dumps({"BlockLocations": {"BlockLocation": [told]}}).encode()
    assert decode_blocks(answer) == [FileBlock(128, ("node-1",), is_corrupt=True)]


@pytest.mark.parametrize("digits", ["", "00", "zz" * 28, "00" * 27])
def test_digits_that_are_no_checksum_are_refused(digits: str) -> None:
    told = {"algorithm": "MD5-of-0MD5-of-512CRC32C", "bytes": digits}
    with pytest.raises(ValueError):  # noqa: PT011
        decode_checksum(json.dumps({"FileChecksum": told}).encode())


def test_truth_and_errors() -> None:
    assert decode_truth(b"")
    assert decode_truth(b'{"boolean": true}')
    assert not decode_truth(b'{"boolean": false}')
    told = b'{"RemoteException": {"exception": "IOException", "message": null}}'
    assert decode_error(told) == RemoteError("IOException", "no message")
