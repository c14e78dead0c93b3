from __future__ import annotations

import pytest

from data_prep.export.output_target import PIECE_BYTES, OutputTarget
from data_prep.images.file_access import FILE, WEBHDFS, FileOpener
from distkeras_grid.errors import StorageError
from distkeras_grid.webhdfs import connection, failures
from tests.distkeras_grid.webhdfs.loopback import Fault, loopback


def test_a_local_file_appears_whole_and_replaces_the_one_of_an_earlier_attempt(tmp_path):
    place = OutputTarget(f"file:{tmp_path}/out folder", FileOpener(FILE))
    place.put("train/a/0.png", b"half")
    place.put("train/a/0.png", b"whole")
    folder = tmp_path / "out folder" / "train" / "a"
    assert [(path.name, path.read_bytes()) for path in folder.iterdir()] == [("0.png", b"whole")]


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "train").write_text("a file")
    with pytest.raises(StorageError, match="train"):
        OutputTarget(f"file:{tmp_path}", FileOpener(FILE)).put("train/0.png", b"content")


def test_a_file_on_hdfs_is_written_again_if_the_connection_breaks(monkeypatch):
    monkeypatch.setattr(failures, "PAUSES", (0.0, 0.0, 0.0))
    monkeypatch.setattr(connection, "TIMEOUTS", (2.0, 2.0))
    content = bytes(range(256)) * (PIECE_BYTES // 256) + b"end"
    with loopback() as hdfs:
        place = OutputTarget("hdfs://cluster:8020/out", FileOpener(WEBHDFS, hdfs.address))
        place.put("train-00000.tar", b"first")
        hdfs.faults["CREATE data"] = Fault("reset")
        place.put("train-00001.tar", content)
        assert hdfs.files == {"/out/train-00000.tar": b"first", "/out/train-00001.tar": content}
