"""The client without a JVM on real daemons: what arrives, what is left out, what is refused."""

from __future__ import annotations

import io
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hdfs import InsecureClient

from distkeras_grid.cli.exit_codes import ExitCode
from distkeras_grid.errors import NoSpaceError, OutputExistsError, PathNotFoundError, StorageError
from distkeras_grid.webhdfs.addresses import Address
from distkeras_grid.webhdfs.checksums import FileDigest
from distkeras_grid.webhdfs.connection import WebHdfsConnection
from distkeras_grid.webhdfs.operations import download, list_directory, upload
from distkeras_grid.webhdfs.transfer_plan import hidden_name, is_hidden
from distkeras_grid.webhdfs.transfers import TransferResult

from .conftest import Grid, wait_for

pytestmark = [pytest.mark.hadoop]

MEGABYTE = 1 << 20


@pytest.fixture(scope="module")
def url(grid: Grid) -> str:
    return grid.sandbox.webhdfs


@pytest.fixture(scope="module")
def client(url: str) -> InsecureClient:
    """Another client of the same daemons, as a witness and as an administrator."""
    client = InsecureClient(url)
    client.resolve = lambda path: path  # else it replaces "#LATEST" in names
    return client


@pytest.fixture
def folder(client: InsecureClient, request: pytest.FixtureRequest) -> Iterator[str]:
    path = f"/webhdfs/{request.node.originalname}"
    client.makedirs(path)
    yield path
    client.delete(path, recursive=True)


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Names and sizes of all kinds."""
    root = tmp_path / "images"
    contents = {
        "day 1/ä ß 零.tif": os.urandom(100_000),
        "day 1/100% #;?&=+,'[x].tif#LATEST": os.urandom(513),
        "day 1/deep/er/.hidden": b"x",
        "day 1/deep/er/_SUCCESS": b"",
        "zero": b"",
        "large": os.urandom(3 * MEGABYTE + 77),
    }
    for name, content in contents.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    (root / "empty" / "folder").mkdir(parents=True)
    (root / "link").symlink_to(root / "zero")
    return root


def tree(root: Path) -> dict[str, bytes | None]:
    """Every file and folder below one, links followed."""
    return {
        str(path.relative_to(root)): path.read_bytes() if path.is_file() else None
        for path in root.rglob("*")
    }


def counts(done: TransferResult) -> tuple[int, int]:
    return done.files, done.same_files


def test_folders_arrive_byte_by_byte_and_come_back(
    url: str, folder: str, images: Path, tmp_path: Path
) -> None:
    assert counts(upload(images, folder, url=url)) == (7, 0)
    assert counts(download(f"{folder}/images", tmp_path / "back", url=url)) == (7, 0)
    assert tree(images) == tree(tmp_path / "back" / "images")
    # Again: nothing is left to do, in both directions.
    assert counts(upload(f"{images}/", f"{folder}/images", url=url)) == (0, 7)
    assert counts(download(f"{folder}/images/", tmp_path / "back/images", url=url)) == (0, 7)


@pytest.mark.parametrize("size", [0, 1, 511, 512, 513, MEGABYTE, 2 * MEGABYTE, 5 * MEGABYTE + 9])
def test_the_checksum_is_computed_as_hdfs_does_for_any_number_of_blocks(
    url: str, client: InsecureClient, folder: str, tmp_path: Path, size: int
) -> None:
    (tmp_path / "file").write_bytes(os.urandom(size))
    client.write(
        f"{folder}/file", (tmp_path / "file").read_bytes(), overwrite=True, blocksize=MEGABYTE
    )
    told = WebHdfsConnection(Address((url,), "root")).checksum(f"{folder}/file")
    assert told is not None
    digest = FileDigest(told.layout)
    digest.update((tmp_path / "file").read_bytes())
    assert digest.digest() == told.digest
    assert told.layout.block_bytes == (MEGABYTE if size > MEGABYTE else 0)
    # So it is known here as the same file, and fetched, whatever the blocks are.
    assert counts(upload(tmp_path / "file", folder, url=url)) == (0, 1)
    (tmp_path / "back").mkdir()
    assert counts(download(f"{folder}/file", tmp_path / "back", url=url)) == (1, 0)


def test_a_killed_upload_goes_on_where_it_ended(
    url: str, client: InsecureClient, folder: str, grid: Grid, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    content = os.urandom(8 * MEGABYTE)
    for number in range(12):
        (source / f"{number}.raw").write_bytes(content[number:])
    target = f"{folder}/source"
    with grid.background("put", "--threads", "2", str(source), folder) as running:
        wait_for(lambda: len(whole(client, target)) >= 2, running)
        running.send_signal(signal.SIGKILL)
    arrived = whole(client, target)
    before = {name: client.status(f"{target}/{name}")["modificationTime"] for name in arrived}
    assert 2 <= len(arrived) < 12
    # What is there under its name is whole.
    for name in arrived:
        with client.read(f"{target}/{name}") as reader:
            assert reader.read() == (source / name).read_bytes()
    # What a run left long ago of a file that is complete by now goes, too; another's stays.
    client.write(hidden_name(f"{target}/{arrived[0]}", "00000000"), b"half")
    client.write(hidden_name(f"{target}/of another", "00000000"), b"half")
    done = grid.grid("put", str(source), folder)
    assert done.returncode == 0, done.stderr
    assert len(whole(client, target)) == 12
    assert len(client.list(target)) == 13
    after = {name: client.status(f"{target}/{name}")["modificationTime"] for name in arrived}
    assert after == before


def test_an_interrupted_download_leaves_no_half_file(
    url: str, client: InsecureClient, folder: str, grid: Grid, tmp_path: Path
) -> None:
    content = os.urandom(8 * MEGABYTE)
    for number in range(24):
        client.write(f"{folder}/{number}.raw", content[number:])
    back = tmp_path / "back"
    # Where these tests run in a shell's background, SIGINT is ignored, and children inherit that.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    with grid.background("get", "--threads", "1", f"{folder}/", str(back)) as running:
        signal.signal(signal.SIGINT, before)
        wait_for(lambda: len(list(back.glob("*.raw"))) >= 2, running)
        running.send_signal(signal.SIGINT)
        _, told = running.communicate(timeout=60)
    arrived = sorted(back.iterdir())
    assert running.returncode == ExitCode.INTERRUPTED, told
    assert 2 <= len(arrived) < 24
    for path in arrived:  # no hidden one among them
        assert path.read_bytes() == content[int(path.stem) :]
    assert counts(download(f"{folder}/", back, url=url)) == (24 - len(arrived), len(arrived))


@pytest.mark.full
def test_a_killed_datanode_is_got_around(
    url: str, client: InsecureClient, folder: str, grid: Grid, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    content = os.urandom(2 * MEGABYTE)
    for number in range(16):
        (source / f"{number}.raw").write_bytes(content[number:])
    done: list[TransferResult] = []
    sending = threading.Thread(target=lambda: done.append(upload(f"{source}/", folder, url=url)))
    sending.start()
    try:
        wait_for(lambda: len(whole(client, folder)) >= 3)
        os.kill(grid.sandbox.daemon("datanode-1").pid, signal.SIGKILL)
        sending.join(timeout=100)
        assert counts(done[0]) == (16, 0)
        # The NameNode still names the dead one for some seconds: reading gets around it, too.
        assert counts(download(f"{folder}/", tmp_path / "back", url=url)) == (16, 0)
    finally:
        grid.sandbox.start()
    assert tree(source) == tree(tmp_path / "back")


@pytest.mark.promise(
    "block of a file: its only copy is damaged",
    "`get` names the byte and says so; no half file is left.",
)
@pytest.mark.full
def test_a_damaged_block_is_told_from_a_broken_connection(
    url: str, client: InsecureClient, folder: str, grid: Grid, tmp_path: Path
) -> None:
    content = os.urandom(2 * MEGABYTE)
    # Where several copies are damaged, HDFS suspects the reader and does not note it.
    client.write(f"{folder}/x.raw", content, replication=1)
    (copy,) = (
        path
        for path in grid.sandbox.layout.root.rglob("blk_*")
        if path.stat().st_size == len(content) and path.read_bytes() == content
    )
    with copy.open("r+b") as file:
        file.seek(MEGABYTE)
        file.write(bytes(1000))
    with pytest.raises(StorageError, match=r"byte 0 all copies are damaged \(on localhost"):
        download(f"{folder}/x.raw", tmp_path / "back", url=url)
    assert not (tmp_path / "back").exists() or list((tmp_path / "back").iterdir()) == []


@pytest.mark.promise(
    "block of a file: all its DataNodes are dead",
    "`get` says that the DataNode refuses connections; that is neither damage nor lack of space.",
)
@pytest.mark.full
def test_dead_datanodes_are_told_from_damage(
    url: str, folder: str, grid: Grid, tmp_path: Path
) -> None:
    source = tmp_path / "x.raw"
    source.write_bytes(os.urandom(MEGABYTE))
    upload(source, folder, url=url)
    names = ("datanode-0", "datanode-1")
    for name in names:
        os.kill(grid.sandbox.daemon(name).pid, signal.SIGKILL)
    try:
        with pytest.raises(StorageError, match=r"the DataNode at .* refuses connections") as raised:
            download(f"{folder}/x.raw", tmp_path / "back", url=url)
    finally:
        grid.sandbox.start()
    assert not isinstance(raised.value, NoSpaceError)


def test_without_permission_nothing_is_left_and_the_reason_is_said(
    url: str, client: InsecureClient, folder: str, images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload(images / "large", folder, url=url)
    client.set_permission(f"{folder}/large", "600")
    monkeypatch.setenv("HADOOP_USER_NAME", "alice")
    # The words of the NameNode.
    with pytest.raises(StorageError, match="user=alice, access=WRITE") as raised:
        upload(images / "zero", folder, url=url)
    assert f"{folder}/zero" in str(raised.value)
    assert not getattr(raised.value, "__notes__", [])
    with pytest.raises(StorageError, match="user=alice, access=WRITE"):
        upload(images, folder, url=url)
    with pytest.raises(StorageError, match="user=alice, access=READ"):
        download(f"{folder}/large", images, url=url, overwrite=True)
    assert client.list(folder) == ["large"]


def test_a_quota_that_is_used_up_is_no_space_and_small_files_still_go(
    url: str, client: InsecureClient, folder: str, tmp_path: Path
) -> None:
    client.makedirs(f"{folder}/bytes")
    client.makedirs(f"{folder}/names")
    quota(client, f"{folder}/names", namespacequota=2)
    quota(client, f"{folder}/bytes", storagespacequota=300 * MEGABYTE)
    for name in "ab":
        (tmp_path / name).write_bytes(b"x")
    with pytest.raises(NoSpaceError):
        upload([tmp_path / "a", tmp_path / "b"], f"{folder}/names", url=url, threads=1)
    assert client.list(f"{folder}/names") == ["a"]
    # Two copies of a block of 128 MiB are reserved while a file is written, three are too many.
    (tmp_path / "large").write_bytes(bytes(129 * MEGABYTE))
    both = [tmp_path / "large", tmp_path / "a"]
    with pytest.raises(NoSpaceError, match="/large "):
        upload(both, f"{folder}/bytes", url=url, threads=1, stream=io.StringIO())
    assert client.list(f"{folder}/bytes") == ["a"]


def test_what_is_no_path_or_no_webhdfs_is_one_line(
    url: str, folder: str, grid: Grid, images: Path, tmp_path: Path
) -> None:
    upload(images / "zero", folder, url=url)
    ipc = grid.hdfs.replace("hdfs", "http")
    zero = f"{folder}/zero"
    for call, kind, named in (
        (lambda: list_directory("/nothing", url=url), PathNotFoundError, "/nothing"),
        (lambda: download("/nothing", tmp_path, url=url), PathNotFoundError, "/nothing"),
        (lambda: upload("/nothing", "/raw", url=url), PathNotFoundError, "/nothing"),
        (lambda: upload(images, zero, url=url), OutputExistsError, zero),
        (lambda: upload(images, f"{zero}/", url=url), OutputExistsError, zero),
        (lambda: upload(images, f"{zero}/x/y", url=url), StorageError, zero),
        (lambda: upload(images / "large", f"{zero}/x", url=url), OutputExistsError, zero),
        (lambda: list_directory("/", url=ipc), StorageError, "/"),
        (lambda: list_directory("/", url=grid.sandbox.yarn), StorageError, "/"),
    ):
        began = time.monotonic()
        with pytest.raises(kind) as raised:
            call()
        assert type(raised.value) is kind
        assert named in str(raised.value)
        assert "\n" not in str(raised.value)
        assert time.monotonic() - began < 5


def test_the_commands_find_the_sandbox_by_its_configuration(
    folder: str, grid: Grid, images: Path, tmp_path: Path
) -> None:
    put = grid.grid("put", str(images), f"hdfs://{folder}")
    assert put.returncode == 0, put.stderr
    listed = grid.grid("ls", f"{grid.hdfs}{folder}/images")
    assert listed.returncode == 0, listed.stderr
    lines = listed.stdout.splitlines()
    assert [line.rsplit("/", 1)[1] for line in lines] == ["day 1", "empty", "large", "link", "zero"]
    assert lines[2].startswith("-rw-r--r--  ")
    assert f"  {3 * MEGABYTE + 77}  " in lines[2]
    got = grid.grid(
        "get",
        f"webhdfs://{grid.sandbox.webhdfs.removeprefix('http://')}{folder}/images",
        str(tmp_path / "back"),
    )
    assert got.returncode == 0, got.stderr
    assert tree(images) == tree(tmp_path / "back" / "images")
    assert grid.grid("put", f"{images}/", f"{folder}/new").returncode == 0
    assert grid.grid("rm", f"{folder}/new").returncode == ExitCode.STORAGE
    assert grid.grid("rm", "--recursive", f"{folder}/new", f"{folder}/images/zero").returncode == 0
    names = [each.name for each in list_directory(folder, url=grid.sandbox.webhdfs)]
    assert names == ["images"]
    refused = grid.grid("put", str(images / "large"), f"{folder}/images/link")
    assert refused.returncode == ExitCode.STORAGE
    assert refused.stderr.count("\n") == 1


def whole(client: InsecureClient, path: str) -> list[str]:
    """Names of the files that are there under their own name."""
    found = client.status(path, strict=False)
    return [name for name in client.list(path) if not is_hidden(name)] if found else []


def quota(client: InsecureClient, path: str, **options: int) -> None:
    """As an administrator would set it."""
    answer = client._session.put(
        f"{client.url}/webhdfs/v1{path}", params={"op": "SETQUOTA", **options}, timeout=30
    )
    assert answer.ok, answer.text
