import pytest

from distkeras_grid.errors import OutputExistsError, PathNotFoundError, StorageError
from distkeras_grid.spark import storage as module
from distkeras_grid.spark.storage import Storage

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


def test_text_round_trip(storage, root):
    storage.write_text(f"{root}/a.json", '{"Größe": 1}')
    assert storage.read_text(f"{root}/a.json") == '{"Größe": 1}'
    storage.write_bytes(f"{root}/b", b"\xff\xfe")
    with pytest.raises(StorageError, match="not UTF-8"):
        storage.read_text(f"{root}/b")


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
    with pytest.raises(StorageError, match="cannot write"):
        storage.write_text(f"{root}/file/below", "text")
    assert names(tmp_path) == ["file"]


def test_list_is_sorted_and_knows_sizes(storage, root, tmp_path):
    (tmp_path / "b").write_bytes(b"123")
    (tmp_path / "a").mkdir()
    entries = storage.list(root)
    assert [(e.name, e.is_directory, e.size) for e in entries] == [("a", True, 0), ("b", False, 3)]


def test_missing_paths_name_themselves(storage, root):
    missing = f"{root}/nothing"
    assert not storage.exists(missing)
    assert storage.delete(missing) is False
    for call in (storage.list, storage.read_bytes, storage.read_text):
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


def test_upload_and_download(storage, root, tmp_path):
    local = tmp_path / "here"
    local.write_bytes(b"abc" * 1000)
    storage.upload(local, f"{root}/far/file")
    with pytest.raises(OutputExistsError):
        storage.upload(local, f"{root}/far/file")
    back = tmp_path / "back/again"
    storage.download(f"{root}/far/file", back)
    assert back.read_bytes() == local.read_bytes()
    assert sorted(p.name for p in back.parent.iterdir()) == ["again"]
    with pytest.raises(PathNotFoundError, match="no such local file"):
        storage.upload(tmp_path / "gone", f"{root}/far/other")
    with pytest.raises(PathNotFoundError, match="far/gone"):
        storage.download(f"{root}/far/gone", tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_path_without_scheme_belongs_to_the_default_file_system(storage, tmp_path):
    assert storage.resolve(str(tmp_path)) == f"file:{tmp_path}"
    assert storage.resolve("relative/name").startswith("file:/")
    assert storage.exists(str(tmp_path))


def test_spaces_and_percent_signs_in_names(storage, root, tmp_path):
    folder = tmp_path / "a b%20c"
    folder.mkdir()
    storage.write_text(f"{folder}/x y", "1")
    assert (folder / "x y").read_text() == "1"
    assert [entry.name for entry in storage.list(str(folder))] == ["x y"]
    assert storage.read_text(storage.list(str(folder))[0].uri) == "1"


def test_free_space_of_a_path_to_come(storage, root):
    free = storage.free_space(f"{root}/not/yet/there")
    assert free == pytest.approx(storage.free_space(root), rel=0.2)
    assert free > 0


@pytest.mark.parametrize("uri", ["nosuchscheme://host/x", "hdfs://no-such-host.invalid:1/x", ""])
def test_paths_nobody_serves_are_one_clear_error(storage, uri):
    with pytest.raises(StorageError, match="cannot look up"):
        storage.exists(uri)
