"""A file gets its name after its bytes have reached the disk."""

import errno
import os
import stat

import pytest

from distkeras_grid import fsync


@pytest.fixture
def calls(monkeypatch):
    """What the kernel is asked, in order, with what was there then."""
    found = []
    sync, replace = os.fsync, os.replace

    def synced(descriptor):
        found.append(("fsync", os.readlink(f"/proc/self/fd/{descriptor}")))
        sync(descriptor)

    def replaced(source, target):
        found.append(("replace", os.fspath(target)))
        replace(source, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", replaced)
    return found


def test_bytes_first_then_the_name(calls, tmp_path):
    source, target = tmp_path / "partial", tmp_path / "whole"
    source.write_bytes(b"new")
    target.write_bytes(b"old")
    fsync.replace(source, target)
    folder = str(tmp_path)
    assert calls == [("fsync", str(source)), ("replace", str(target)), ("fsync", folder)]
    assert (target.read_bytes(), source.exists()) == (b"new", False)


def test_all_below_a_folder_and_both_names(calls, tmp_path):
    deep = tmp_path / "new" / "split=train"
    deep.mkdir(parents=True)
    (deep / "part.parquet").write_bytes(b"tiles")
    (tmp_path / "new" / "pipe").symlink_to("/dev/null")
    fsync.persist(tmp_path / "new")
    synced = [path for _, path in calls]
    # A folder after what it names.
    assert sorted(synced) == sorted(map(str, (deep / "part.parquet", deep, tmp_path / "new")))
    assert synced.index(str(deep / "part.parquet")) < synced.index(str(deep))
    calls.clear()
    fsync.renamed(tmp_path / "new", deep / "set")
    assert calls == [("fsync", str(deep)), ("fsync", str(tmp_path))]


def test_a_name_without_a_folder(calls, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "partial").write_bytes(b"new")
    fsync.replace("partial", "whole")
    assert (tmp_path / "whole").read_bytes() == b"new"


def test_a_file_system_that_syncs_no_folders_still_renames(tmp_path, monkeypatch):
    """Some do, such as those of FUSE; the bytes are on the disk all the same."""
    sync = os.fsync

    def refuse_folders(descriptor):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "Invalid argument")
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", refuse_folders)
    (tmp_path / "partial").write_bytes(b"new")
    fsync.replace(tmp_path / "partial", tmp_path / "whole")
    assert (tmp_path / "whole").read_bytes() == b"new"


def test_a_disk_that_fails_is_an_error_and_nothing_is_renamed(tmp_path, monkeypatch):
    def fail(descriptor):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    (tmp_path / "partial").write_bytes(b"new")
    with pytest.raises(OSError, match="Input/output"):
        fsync.replace(tmp_path / "partial", tmp_path / "whole")
    assert not (tmp_path / "whole").exists()


def test_a_file_appears_whole_or_not_at_all(calls, tmp_path):
    target = tmp_path / "new" / "file"

    def write(content, parts):
        with fsync.atomic_file(target) as partial:
            partial.write_bytes(content)
            assert 1 // parts == 1
            assert not target.exists()

    with pytest.raises(ZeroDivisionError):
        write(b"half", 0)
    assert (list(target.parent.iterdir()), calls) == ([], [])
    write(b"whole", 1)
    assert target.read_bytes() == b"whole"
    assert list(target.parent.iterdir()) == [target]
    assert [kind for kind, _ in calls][:2] == ["fsync", "replace"]
