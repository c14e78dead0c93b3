import errno
import os
import tempfile
from pathlib import Path

import pytest

from distkeras_grid.errors import (
    NoSpaceError,
    OutputExistsError,
    PathNotFoundError,
    StorageError,
)
from distkeras_grid.spark import storage as module
from distkeras_grid.spark.storage import Storage
from distkeras_grid.spark.storage_errors import storage_error

pytestmark = pytest.mark.spark


@pytest.fixture
def storage(spark):
    return Storage(spark)


@pytest.fixture
def root(tmp_path):
    return tmp_path.as_uri()


def names(path):
    return sorted(p.name for p in path.iterdir() if not p.name.endswith(".crc"))


@pytest.mark.parametrize("content", [b"", b"x", bytes(range(256)) * 5])
def test_bytes_round_trip_in_chunks(storage, root, tmp_path, content, monkeypatch):
    monkeypatch.setattr(module, "CHUNK_BYTES", 100)
    storage.write_bytes(f"{root}/new/folder/file", content)
    assert storage.read_bytes(f"{root}/new/folder/file") == content
    assert (tmp_path / "new/folder/file").read_bytes() == content
    assert names(tmp_path / "new/folder") == ["file"]


def test_a_temporary_folder_that_is_gone_does_not_make_a_file_missing(
    storage, root, tmp_path, monkeypatch
):
    """A checkpoint that could not be read for it counted as torn."""
    storage.write_bytes(f"{root}/file", bytes(2 * module.CHUNK_BYTES))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    with pytest.raises(FileNotFoundError, match="gone"):
        storage.read_bytes(f"{root}/file")


LINES = ["short\n", "", "\n", "Größe" * 9 + "\n", "\u2028 and \r stay in their line\n", "no end"]


@pytest.mark.parametrize("lines", [[], LINES, LINES[:-1], ["alone"]])
@pytest.mark.parametrize("piece", [1, 7, 10**6])
def test_lines_round_trip_in_pieces(storage, root, tmp_path, lines, piece, monkeypatch):
    monkeypatch.setattr(module, "COPY_BYTES", piece)
    storage.write_lines(f"{root}/new/file", iter(lines))
    assert (tmp_path / "new/file").read_bytes() == "".join(lines).encode()
    assert list(storage.read_lines(f"{root}/new/file")) == [line for line in lines if line]


def test_lines_that_cannot_be_read_or_written_are_named(storage, root, tmp_path):
    with pytest.raises(PathNotFoundError, match="none"):
        list(storage.read_lines(f"{root}/none"))
    (tmp_path / "binary").write_bytes(b"text\n\xff\xfe\n")
    lines = storage.read_lines(f"{root}/binary")
    assert next(lines) == "text\n"
    for read in (lambda: next(lines), lambda: storage.read_text(f"{root}/binary")):
        with pytest.raises(StorageError, match="not UTF-8"):
            read()

    def broken():
        yield "text\n"
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        storage.write_lines(f"{root}/broken", broken())
    assert names(tmp_path) == ["binary"]
    with pytest.raises(OutputExistsError):
        storage.write_lines(f"{root}/binary", ["text"])


def test_existing_file_is_kept_unless_told(storage, root, tmp_path):
    storage.write_text(f"{root}/a", "old and longer")
    with pytest.raises(OutputExistsError, match=f"{root}/a"):
        storage.write_text(f"{root}/a", "new")
    assert storage.read_text(f"{root}/a") == "old and longer"
    storage.write_text(f"{root}/a", "new", overwrite=True)
    assert storage.read_text(f"{root}/a") == "new"
    assert names(tmp_path) == ["a"]


def test_failed_write_leaves_nothing(storage, root, tmp_path):
    with pytest.raises(TypeError):
        storage.write_bytes(f"{root}/target", ["not bytes"])
    assert names(tmp_path) == []
    (tmp_path / "file").write_text("x")
    with pytest.raises(StorageError, match="Cannot write"):
        storage.write_text(f"{root}/file/below", "text")
    assert names(tmp_path) == ["file"]


def test_names_are_sorted_and_those_of_checksums_left_out(storage, root, tmp_path):
    storage.write_bytes(f"{root}/b", b"123")
    (tmp_path / "a").mkdir()
    (tmp_path / ".hidden").touch()
    (tmp_path / ".b.crc").touch()
    assert storage.list_names(root) == [".hidden", "a", "b"]
    assert storage.list_names(f"{root}/b") == ["b"]
    assert storage.list_names(f"{root}/a") == []


def test_a_first_file_that_is_not_empty(storage, root, tmp_path):
    assert storage.first_file(root) is None
    assert storage.first_file(f"{root}/of an output that does not exist yet") is None
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "empty.png").touch()
    assert storage.first_file(root) is None
    (tmp_path / "a" / "b" / "0.png").write_bytes(b"x")
    assert storage.first_file(root) == f"file:{tmp_path}/a/b/0.png"


def test_a_hidden_name_stands_beside_and_is_never_the_same(storage, root, tmp_path):
    one, other = storage.hidden_beside(f"{root}/a/"), storage.hidden_beside(f"{root}/a")
    assert one.startswith(f"file:{tmp_path}/_a.")
    assert one.endswith(".tmp")
    assert one != other
    with pytest.raises(StorageError, match="file:/ is the root of a file system"):
        storage.hidden_beside("file:/")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux has a device that is full")
def test_a_full_disk_is_an_error_of_its_own_and_leaves_nothing(
    storage, root, tmp_path, monkeypatch
):
    # What is written to the hidden name goes to a device that always says it is full.
    (tmp_path / "hidden").symlink_to("/dev/full")
    monkeypatch.setattr(Storage, "hidden_beside", lambda *_: f"{root}/hidden")
    with pytest.raises(NoSpaceError, match=r"Cannot write .*/a: .* Free some space there"):
        storage.write_bytes(f"{root}/a", bytes(100_000))
    assert names(tmp_path) == []


FAILED, NOT_FOUND = ("IOException", "write failed"), "FileNotFoundException"


@pytest.mark.parametrize(
    ("causes", "kind", "advice"),
    [
        ([FAILED, ("DSQuotaExceededException", "The quota")], NoSpaceError, "quota of bytes"),
        ([FAILED, ("NSQuotaExceededException", "The quota")], NoSpaceError, "quota of names"),
        ([FAILED, ("IOException", "Disk quota exceeded")], NoSpaceError, "Free some of the quota"),
        (
            [FAILED, ("RemoteException", "org.apache.DSQuotaExceededException: The DiskSpace")],
            NoSpaceError,
            "quota of bytes",
        ),
        # Java also says so of a file that it could not open for another reason.
        ([(NOT_FOUND, "/x/a (No space left on device)")], NoSpaceError, "Free some space"),
        ([(NOT_FOUND, "/x/a (Permission denied)")], StorageError, ""),
        ([(NOT_FOUND, "File file:/x/a does not exist")], PathNotFoundError, ""),
        ([("FileAlreadyExistsException", "b exists")], OutputExistsError, ""),
    ],
)
def test_what_java_says_chooses_the_error(causes, kind, advice):
    error = storage_error("write", "hdfs:///x/a", causes)
    assert type(error) is kind
    assert "Cannot write hdfs:///x/a" in str(error)
    assert advice in str(error)


def test_what_cannot_be_deleted_after_an_error_is_a_note_of_that_error(storage):
    error = ValueError("the first")
    storage.discard("nosuchscheme://host/x", error)
    (note,) = error.__notes__
    assert note.startswith(
        "nosuchscheme://host/x is incomplete and cannot be deleted: Cannot delete"
    )


def test_missing_paths_name_themselves(storage, root):
    missing = f"{root}/nothing"
    assert not storage.exists(missing)
    assert storage.delete(missing) is False
    for call in (storage.list_names, storage.read_bytes, storage.read_text):
        with pytest.raises(PathNotFoundError, match=missing):
            call(missing)
    with pytest.raises(PathNotFoundError, match=missing):
        storage.rename(missing, f"{root}/other")


def test_rename_directory_and_refuse_an_existing_one(storage, root, tmp_path):
    (tmp_path / "from").mkdir()
    (tmp_path / "from/file").write_text("x")
    (tmp_path / "there").mkdir()
    with pytest.raises(OutputExistsError, match="there exists"):
        storage.rename(f"{root}/from", f"{root}/there")
    storage.rename(f"{root}/from", f"{root}/to")
    assert (tmp_path / "to/file").read_text() == "x"
    assert not (tmp_path / "from").exists()


def test_make_dirs_and_delete(storage, root, tmp_path):
    storage.make_dirs(f"{root}/a/b")
    storage.make_dirs(f"{root}/a/b")
    assert (tmp_path / "a/b").is_dir()
    assert storage.delete(f"{root}/a") is True
    assert not (tmp_path / "a").exists()
    (tmp_path / "file").write_text("x")
    with pytest.raises(StorageError, match=f"{root}/file/below"):
        storage.make_dirs(f"{root}/file/below")


def test_spaces_and_percent_signs_in_names(storage, root, tmp_path):
    folder = tmp_path / "a b%20c"
    folder.mkdir()
    storage.write_text(f"{folder}/x y", "1")
    assert (folder / "x y").read_text() == "1"
    assert storage.list_names(str(folder)) == ["x y"]
    assert storage.read_text(f"{folder}/x y") == "1"


def test_free_space_of_a_path_to_come(storage, root):
    free = storage.free_space(f"{root}/not/yet/there")
    assert free == pytest.approx(storage.free_space(root), rel=0.2)
    assert free > 0


@pytest.fixture
def one_try(spark):
    """Hadoop asks a host that refuses the connection once, and not ten times in ten seconds."""
    configuration = spark.sparkContext._jsc.hadoopConfiguration()
    configuration.set("ipc.client.connect.max.retries", "0")
    yield
    configuration.unset("ipc.client.connect.max.retries")


@pytest.mark.parametrize(
    ("uri", "cause"),
    [
        ("hdfs://no-such-host.invalid:1/x", "UnknownHostException"),
        ("hdfs://127.0.0.1:1/x", "ConnectException"),
        ("nosuchscheme://host/x", "UnsupportedFileSystemException"),
        ("", "IllegalArgumentException"),
    ],
)
def test_a_path_nobody_serves_is_one_clear_error(storage, one_try, uri, cause):
    with pytest.raises(StorageError, match=f"Cannot look up {uri}: .*{cause}") as caught:
        storage.exists(uri)
    assert "\n" not in str(caught.value)


def test_a_file_is_written_in_place_without_another_beside_it(storage, root, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "CHUNK_BYTES", 4)
    for text in ("first and longer", "ü"):
        storage.write_in_place(f"{root}/new/sign", text)
        assert storage.read_text(f"{root}/new/sign") == text
    # Not even a file with its checksum.
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["sign"]


@pytest.fixture
def synced(monkeypatch):
    """What Python has asked the disk to keep, by path, and how often the JVM was asked."""
    paths, sync, persist = [], os.fsync, module._persist

    def told(descriptor):
        paths.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        sync(descriptor)

    def of_jvm(stream):
        assert stream.hasCapability("hsync")
        paths.append("stream")
        persist(stream)

    monkeypatch.setattr(os, "fsync", told)
    monkeypatch.setattr(module, "_persist", of_jvm)
    return paths


@pytest.mark.parametrize("how", ["write_text", "write_in_place", "upload"])
def test_a_file_reaches_the_disk_before_its_name_and_the_name_then(
    storage, root, tmp_path, synced, how
):
    if how == "upload":
        (tmp_path / "here").write_bytes(b"content")
        storage.upload(tmp_path / "here", f"{root}/to/file", lambda _: None)
    else:
        getattr(storage, how)(f"{root}/to/file", "content")
    assert synced[0] == "stream"
    if how != "write_in_place":
        hidden, folder = synced[1:]
        assert hidden.startswith(f"{tmp_path}/to/_file.")
        assert folder == str(tmp_path / "to")


def test_what_spark_wrote_reaches_the_disk_before_its_folder_gets_its_name(
    spark, storage, root, tmp_path, synced
):
    """Spark leaves Parquet to the system's memory: after a power failure files could be empty."""
    spark.range(2, numPartitions=2).write.parquet(f"{root}/_new-0")
    files = sorted(str(path) for path in (tmp_path / "_new-0").glob("*.parquet"))
    assert len(files) == 2
    storage.persist(f"{root}/_new-0")
    assert set(files) <= set(synced)
    synced.clear()
    (tmp_path / "set").mkdir()
    storage.rename(f"{root}/_new-0", f"{root}/set/shard=0")
    assert set(files) <= set(synced)
    assert synced.index(str(tmp_path / "_new-0")) > max(map(synced.index, files))
    assert synced[-2:] == [str(tmp_path / "set"), str(tmp_path)]


def test_a_disk_that_fails_is_an_error_before_anything_has_a_name(
    storage, root, tmp_path, monkeypatch
):
    def fail(_):
        raise OSError(errno.EIO, "Input/output error")

    (tmp_path / "_new-0").mkdir()
    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(StorageError, match="Input/output"):
        storage.rename(f"{root}/_new-0", f"{root}/shard=0")
    assert names(tmp_path) == ["_new-0"]


@pytest.mark.parametrize("new", ["write_text", "write_in_place"])
@pytest.mark.parametrize("old", ["write_text", "write_in_place"])
def test_a_file_that_replaces_another_is_readable_with_checksums_or_without(
    storage, root, tmp_path, old, new
):
    """In one step: Hadoop deletes the old file of a local disk before it renames the new one."""
    getattr(storage, old)(f"{root}/a", "old and longer")
    getattr(storage, new)(f"{root}/b", "new")
    before = (tmp_path / "b").stat().st_ino
    storage.rename(f"{root}/b", f"{root}/a", overwrite=True)
    assert storage.read_text(f"{root}/a") == "new"
    assert (tmp_path / "a").stat().st_ino == before
    assert names(tmp_path) == ["a"]


def refuse(*_):
    raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))


@pytest.mark.parametrize("links", [True, False], ids=["links", "no links"])
def test_a_file_that_comes_after_the_check_is_not_replaced(
    storage, root, tmp_path, monkeypatch, links
):
    """A rename of Java's checks first, and replaces what comes then; so of two commits both won."""
    storage.write_text(f"{root}/a", "winner")
    monkeypatch.setattr(Storage, "exists", lambda *_: False)
    if not links:
        monkeypatch.setattr(os, "link", refuse)
    with pytest.raises(StorageError, match="exists already"):
        storage.write_text(f"{root}/a", "late")
    storage.write_text(f"{root}/b", "new")
    assert names(tmp_path) == ["a", "b"]
    assert (storage.read_text(f"{root}/a"), storage.read_text(f"{root}/b")) == ("winner", "new")


@pytest.mark.parametrize("write", ["write_text", "write_in_place"])
def test_what_was_edited_by_hand_is_read_again(storage, root, tmp_path, write):
    """Hadoop keeps checksums of local files, and refused to read the ones that were edited."""
    getattr(storage, write)(f"{root}/run.json", '{"a": 1}')
    (tmp_path / "run.json").write_text('{"a": 2, "b": 3}')
    assert storage.read_text(f"{root}/run.json") == '{"a": 2, "b": 3}'
    # A checksum that is left of a file which somebody has deleted is none of the next one.
    (tmp_path / "run.json").unlink()
    stream = storage.java_path(f"{root}/run.json")[0].create(
        storage.java_path(f"{root}/run.json")[1]
    )
    stream.write(b"of a former release")
    stream.close()
    (tmp_path / "run.json").unlink()
    assert (tmp_path / ".run.json.crc").exists()
    getattr(storage, write)(f"{root}/run.json", "new")
    assert storage.read_text(f"{root}/run.json") == "new"
    assert not (tmp_path / ".run.json.crc").exists()


def test_only_an_empty_directory_is_deleted(storage, root, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("x")
    (tmp_path / "empty").mkdir()
    assert storage.delete_empty(f"{root}/empty")
    assert storage.delete_empty(f"{root}/missing") in (True, False)
    assert not storage.delete_empty(f"{root}/full")
    assert names(tmp_path) == ["full"]


def test_size_counts_all_files_below(storage, root, tmp_path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "x").write_bytes(b"123")
    (tmp_path / "a" / "b" / "y").write_bytes(b"45")
    assert storage.size(f"{root}/a") == 5
