from __future__ import annotations

import pytest

from distkeras_grid.errors import NoSpaceError, OutputExistsError, PathNotFoundError, StorageError
from distkeras_grid.tickets import Keytab
from distkeras_grid.webhdfs.failures import PAUSES, HttpError, Unreachable, explain, lost

NAMENODES = ("http://one:9870", "http://two:9870")


def test_the_pauses_outlast_a_standby_that_takes_over() -> None:
    assert sum(PAUSES) > 10


@pytest.mark.parametrize(
    ("exception", "message", "kind", "told"),
    [
        ("FileNotFoundException", "File /x does not exist.", PathNotFoundError, "does not exist"),
        ("FileAlreadyExistsException", "/x exists", OutputExistsError, "choose another name"),
        ("DSQuotaExceededException", "The DiskSpace quota", NoSpaceError, "quota of bytes"),
        ("NSQuotaExceededException", "The NameSpace quota", NoSpaceError, "quota of names"),
        ("RemoteException", "java.DSQuotaExceededException: /", NoSpaceError, "quota of bytes"),
        (
            "IOException",
            "File /x could only be written to 0 of the 1 minReplication nodes.",
            NoSpaceError,
            "too little room",
        ),
        (
            "IOException",
            "File /x could only be written to 0 of the 1 minReplication nodes. There are 2 "
            "datanode(s) running and 1 node(s) are excluded in this operation.",
            NoSpaceError,
            "too little room",
        ),
        (
            "IOException",
            "File /x could only be written to 0 of the 1 minReplication nodes. There are 0 "
            "datanode(s) running and 0 node(s) are excluded in this operation.",
            StorageError,
            "No DataNode is alive",
        ),
        (
            "RemoteException",
            "File /x could only be written to 0 of the 1 minReplication nodes. There are 1 "
            "datanode(s) running and 1 node(s) are excluded in this operation.",
            StorageError,
            "not a lack of space",
        ),
        ("IOException", "Could not obtain block: BP-1:blk_7", StorageError, "hdfs fsck"),
        ("ChecksumException", "Checksum error: /x at 512", StorageError, "A block is damaged"),
        ("AccessControlException", "Permission denied: user=a", StorageError, "the permission"),
        ("AccessControlException", "/x (is not a directory)", StorageError, "part of the path is"),
        ("SafeModeException", "Name node is in safe mode.\nThe", StorageError, "-safemode leave"),
        ("RetriableException", "... is in safe mode", StorageError, "-safemode leave"),
        ("StandbyException", "READ is not supported", StorageError, "addresses of both"),
        ("IOException", "first.\nsecond", StorageError, "IOException: first.$"),
        (None, "<html>\n<head>", StorageError, "not WebHDFS. Received: <html>. Check the URL"),
    ],
)
def test_what_hdfs_says_becomes_one_line_of_ours(
    exception: str | None, message: str, kind: type[StorageError], told: str
) -> None:
    error = explain("write", "/x", HttpError(NAMENODES[0], message, exception))
    assert type(error) is kind
    with pytest.raises(kind, match=f"Cannot write /x on HDFS: .*{told}"):
        raise error
    assert "\n" not in str(error)


@pytest.mark.parametrize(
    ("url", "trouble", "told"),
    [
        ("http://two:9870/webhdfs", "refused", "the NameNode at two:9870 refuses"),
        ("http://dn:9864/webhdfs", "refused", "the DataNode at dn:9864 refuses"),
        ("http://dn:9864/x", "unknown host", "no host 'dn'. Check the URL; the name of a DataNode"),
        ("http://one:9870/x", "unknown host", "no host 'one'. Check the URL"),
        ("http://one:9870/x", "silent", "the NameNode at one:9870 does not answer"),
        ("http://dn:9864/x", "broken", "to the DataNode at dn:9864 broke (by peer)"),
        ("https://one/x", "TLS", "REQUESTS_CA_BUNDLE"),
    ],
)
def test_a_connection_that_is_not_made_names_its_end(url: str, trouble: str, told: str) -> None:
    failure = Unreachable(url, "by peer\nnow", trouble)
    error = explain("read", "/x", failure, namenodes=NAMENODES)
    assert told in str(error)
    assert "\n" not in str(error)


def test_who_asks_is_told_what_to_do() -> None:
    def told(kerberos: bool | Keytab) -> str:
        failure = HttpError(NAMENODES[0], "", None, 401)
        return str(explain("list", "/", failure, kerberos=kerberos))

    assert "kinit" in told(True)
    assert "ada.keytab gets no ticket for ada@GRID" in told(Keytab("ada@GRID", "ada.keytab"))
    assert "--kerberos" in told(False)


def test_a_block_that_nobody_can_read_is_named() -> None:
    fine = {"offset": 0, "hosts": ["node-1"], "corrupt": False}
    assert lost("Cannot read /x", [fine]) is None
    damaged = str(lost("Cannot read /x", [fine, fine | {"offset": 128, "corrupt": True}]))
    assert "byte 128 all copies are damaged (on node-1)" in damaged
    assert "byte 0 no DataNode with a copy is alive" in str(lost("", [fine | {"hosts": []}]))
