"""Mirrors that fail, lie and disappear, as real servers on loopback: M1, M3 and M4."""

import contextlib
import functools
import hashlib
import socket
import time

import numpy as np
import pytest

from distkeras_grid.errors import ConfigurationError, PathNotFoundError, StorageError
from distkeras_grid.stores import locations as locations_module
from distkeras_grid.stores.disk_cache import DiskCache
from distkeras_grid.stores.locations import open_location, scheme_of
from distkeras_grid.stores.mirrors import (
    AVOIDED_SECONDS,
    ByteRange,
    Mirrors,
)
from distkeras_grid.webhdfs.addresses import shown
from tests.distkeras_grid.stores.servers import (
    Damaged,
    Quiet,
    Ranges,
    Slow,
    http_server,
    webhdfs_server,
)

pytestmark = pytest.mark.slow

CONTENT = np.random.default_rng(0).integers(0, 256, 300_000, np.uint8).tobytes()
# Names as images have them; a fragment or a query to those who do not quote them.
PATH = "day 1/a#b%20c ü.bin"
RANGES = [(0, 300_000), (0, 1), (1, 4096), (65_535, 65_537), (299_999, 300_000), (100_000, 230_000)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mirror")
    (folder / "day 1").mkdir()
    (folder / PATH).write_bytes(CONTENT)
    (folder / "plain.bin").write_bytes(CONTENT)
    return folder


@pytest.fixture(scope="module")
def locations(folder):
    with contextlib.ExitStack() as stack:
        yield {
            "file": folder.as_uri(),
            "path": str(folder),
            "http": stack.enter_context(http_server(folder, Quiet)),
            "ranges": stack.enter_context(http_server(folder, Ranges)),
            "webhdfs": stack.enter_context(webhdfs_server(folder)),
        }


@pytest.fixture
def mirrors(locations):
    made = []

    def make(names, **more):
        made.append(Mirrors([locations.get(name, name) for name in names], **more))
        return made[-1]

    yield make
    for each in made:
        each.close()


def piece(start=0, stop=300_000, path="plain.bin"):
    return ByteRange(path, start, stop, hashlib.sha256(CONTENT[start:stop]).hexdigest())


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@pytest.mark.parametrize("kind", ["file", "path", "http", "ranges", "webhdfs"])
def test_M3_a_part_is_the_slice_of_the_whole(kind, locations):
    location = open_location(locations[kind])
    path = "plain.bin" if kind == "file" else PATH
    try:
        for start, stop in RANGES:
            assert location.read(path, start, stop) == CONTENT[start:stop]
        with pytest.raises(PathNotFoundError):
            location.read("none.bin", 0, 10)
        # After an error the connection still answers what it is asked.
        assert location.read(path, 7, 9) == CONTENT[7:9]
    finally:
        location.close()


@pytest.mark.parametrize("down", ["http", "webhdfs", "file"])
def test_M1_with_any_mirror_down_the_same_bytes_come(down, mirrors, tmp_path):
    gone = {
        "http": f"http://127.0.0.1:{free_port()}",
        "webhdfs": f"webhdfs://127.0.0.1:{free_port()}/data",
        "file": str(tmp_path / "none"),
    }[down]
    up = [name for name in ("ranges", "webhdfs", "path") if name != down]
    reader = mirrors([*up, gone])
    for number in range(20):
        asked = piece(number * 5000, number * 5000 + 100)
        assert reader.fetch(asked) == CONTENT[asked.start : asked.stop]
    assert shown(gone) not in reader.bytes_read
    assert reader.bytes_read.total() == 20 * 100
    # Where it is the first choice it is asked once, and then only where no other has the piece.
    assert reader.failures.total() <= 1
    assert set(reader.failures) <= {shown(gone)}


@contextlib.contextmanager
def liar(kind, folder, damaged):
    """Serve the files with a wrong byte in each part that is asked for, of the same length."""
    (damaged / "plain.bin").write_bytes(bytes(byte ^ 1 for byte in CONTENT))
    if kind == "http":
        with http_server(folder, Damaged) as address:
            yield address
    elif kind == "path":
        yield str(damaged)
    else:
        with webhdfs_server(damaged) as address:
            yield address


@pytest.mark.parametrize("kind", ["http", "webhdfs", "path"])
def test_M4_wrong_bytes_are_never_used_and_asked_for_elsewhere(kind, folder, mirrors, tmp_path):
    with liar(kind, folder, tmp_path) as address:
        reader = mirrors([address, str(folder)], node=3)
        for number in range(20):
            asked = piece(number * 5000, number * 5000 + 100)
            assert reader.fetch(asked) == CONTENT[asked.start : asked.stop]
        assert reader.failures[shown(address)] >= 1
        assert shown(address) not in reader.bytes_read
        alone = mirrors([address])
        with pytest.raises(StorageError):
            alone.fetch(piece())
        assert not alone.bytes_read


def test_M4_a_part_that_is_too_short_is_asked_for_elsewhere(folder, mirrors, tmp_path):
    (tmp_path / "plain.bin").write_bytes(CONTENT[:1000])
    reader = mirrors([str(tmp_path), "path"])
    assert reader.fetch(ByteRange("plain.bin", 500, 2000)) == CONTENT[500:2000]
    assert set(reader.bytes_read) == {str(folder)}


def test_a_mirror_that_failed_is_asked_again_after_a_while(mirrors, tmp_path):
    now = [0.0]
    late = tmp_path / "late"
    reader = mirrors([str(late), "path"], clock=lambda: now[0])
    pieces = [piece(start, start + 1) for start in range(40)]
    for each in pieces:
        reader.fetch(each)
    assert reader.failures == {str(late): 1}
    late.mkdir()
    (late / "plain.bin").write_bytes(CONTENT)
    now[0] = AVOIDED_SECONDS
    for each in pieces:
        reader.fetch(each)
    assert reader.bytes_read[str(late)] > 5


def test_what_has_come_is_kept_and_not_read_again(mirrors, locations, tmp_path):
    reader = mirrors(["ranges"], cache=DiskCache(tmp_path, most_bytes=150_000))
    first, second = piece(0, 100_000), piece(100_000, 200_000)
    for _ in range(3):
        assert reader.fetch(first) == CONTENT[:100_000]
    assert reader.bytes_read.total() == 100_000
    # There is no room for it.
    for _ in range(3):
        assert reader.fetch(second) == CONTENT[100_000:200_000]
    assert reader.bytes_read.total() == 400_000
    assert Mirrors.of_node([locations["path"], locations["file"]], 0)._cache is None
    far = Mirrors.of_node([locations["path"], locations["ranges"]], 0)
    assert far._cache is not None
    far.close()
    far.close()


def test_a_file_that_no_mirror_has_is_said_to_be_missing(mirrors):
    with pytest.raises(StorageError, match="There is no file"):
        mirrors(["path", "ranges", "webhdfs"]).fetch(ByteRange("none.bin", 0, 1))


def test_no_password_is_told(mirrors):
    place = f"127.0.0.1:{free_port()}"
    reader = mirrors([f"http://ada:secret@{place}/tiles"])
    with pytest.raises(StorageError) as caught:
        reader.fetch(ByteRange("a", 0, 1))
    assert "secret" not in str(caught.value)
    assert reader.failures == {f"http://{place}/tiles": 2}


@pytest.mark.parametrize(
    "server",
    [functools.partial(http_server, handler=Slow), functools.partial(webhdfs_server, slow=True)],
    ids=["http", "webhdfs"],
)
def test_a_server_that_sends_a_byte_now_and_then_is_given_up(server, folder, monkeypatch):
    """Each byte came within the limit of a packet, so the read had no end."""
    monkeypatch.setattr(locations_module, "READ_SECONDS", 0.5)
    with (
        server(folder) as address,
        contextlib.closing(open_location(address)) as location,
    ):
        began = time.monotonic()
        with pytest.raises(StorageError, match=r"within 0\.5 s"):
            location.read("plain.bin", 0, 100)
        assert time.monotonic() - began < 4


@pytest.mark.parametrize("location", ["s3a://bucket/tiles", "sftp://ada:secret@host/x"])
def test_locations_that_no_worker_can_read_are_refused_without_their_password(location):
    for refuse in (scheme_of, open_location):
        with pytest.raises(ConfigurationError) as caught:
            refuse(location)
        assert "secret" not in str(caught.value)
