from __future__ import annotations

from collections.abc import Iterator

import pytest

from distkeras_grid.errors import PathNotFoundError
from distkeras_grid.webhdfs.connection import WebHdfsConnection
from distkeras_grid.webhdfs.hdfs_files import HdfsFiles
from distkeras_grid.webhdfs.hidden_names import hidden_name
from distkeras_grid.webhdfs.transfer_plan import ExistingEntry, TransferItem
from tests.distkeras_grid.webhdfs.loopback import Loopback

FOLDER = ExistingEntry(is_directory=True)


@pytest.fixture
def files(hdfs: Loopback) -> Iterator[HdfsFiles]:
    hdfs.directories |= {"/raw", "/raw/deep"}
    hdfs.files |= {"/raw/deep/x": b"12", "/raw/a": b"1", hidden_name("/raw/a", "00000000"): b"h"}
    with WebHdfsConnection(hdfs.address) as connection:
        yield HdfsFiles(connection)


def test_a_folder_is_walked_without_what_is_half_there(files: HdfsFiles) -> None:
    assert list(files.walk("/raw", "/here")) == [
        TransferItem("/raw", "/here", is_directory=True),
        TransferItem("/raw/a", "/here/a", 1),
        TransferItem("/raw/deep", "/here/deep", is_directory=True),
        TransferItem("/raw/deep/x", "/here/deep/x", 2),
    ]
    with pytest.raises(PathNotFoundError):
        list(files.walk("/nothing", "/here"))


def test_directories_are_looked_at_and_none_below_one_that_is_missing(
    files: HdfsFiles, hdfs: Loopback
) -> None:
    present = files.find_existing({"/raw/deep", "/new", "/new/a", "/new/a/b", "/raw/a"})
    assert present == {
        "/raw/deep": FOLDER,
        "/raw/deep/x": ExistingEntry(2),
        "/raw/a": ExistingEntry(1),
    }
    assert hdfs.asked == ["LISTSTATUS"] * 3


def test_what_is_at_a_path(files: HdfsFiles) -> None:
    found = [files.present(path) for path in ("/raw", "/raw/a", "/nothing")]
    assert found == [FOLDER, ExistingEntry(1), None]
