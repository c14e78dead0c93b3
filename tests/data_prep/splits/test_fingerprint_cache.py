"""Fingerprints in a temporary file, of which the memory holds the names only."""

import resource

import pytest

from data_prep.splits.fingerprint_cache import FingerprintFile
from distkeras_grid.errors import StorageError
from tests.leaks import open_files


def filled(count):
    prints = FingerprintFile()
    for i in range(count):
        prints.add(f"{i}", bytes([i]) * i)
    return prints


def test_it_reads_as_a_mapping_while_it_is_written():
    prints = FingerprintFile()
    for i in range(5):
        prints.add(f"{i}", bytes([i]) * i)
        assert {name: prints[name] for name in prints} == {
            f"{k}": bytes([k]) * k for k in range(i + 1)
        }
    assert ("3" in prints, "9" in prints, prints.get("9"), len(prints)) == (True, False, None, 5)
    with pytest.raises(KeyError):
        prints["9"]


def test_a_name_keeps_its_first_content():
    prints = filled(3)
    prints.add("2", b"another")
    assert prints == filled(3)


def test_its_file_has_no_name_and_ends_with_it(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    before = open_files()
    prints = filled(3)
    assert list(tmp_path.iterdir()) == []
    assert open_files() == before + 1
    del prints
    assert open_files() == before


@pytest.fixture
def small_files():
    """No file of this process can grow beyond ten bytes."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.usefixtures("small_files")
def test_a_full_disk_is_told_and_leaves_what_was_there():
    prints = filled(3)
    with pytest.raises(StorageError):
        prints.add("a", bytes(20))
    assert "a" not in prints
    assert prints == filled(3)
    prints.add("a", b"seven b")
    assert prints["a"] == b"seven b"


def test_a_subset_outlives_the_name_of_the_whole():
    prints = filled(4).subset(["1", "2"])
    assert dict(prints) == {"1": b"\1", "2": b"\2\2"}
    assert prints.get("3") is None
