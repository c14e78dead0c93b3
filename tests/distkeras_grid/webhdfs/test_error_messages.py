from __future__ import annotations

import pytest

from distkeras_grid.errors import NoSpaceError, OutputExistsError, PathNotFoundError, StorageError
from distkeras_grid.tickets import Keytab
from distkeras_grid.webhdfs.error_messages import explain, not_authenticated, refusal, unreachable
from distkeras_grid.webhdfs.retry_policy import (
    AttemptFailure,
    HttpError,
    NetworkErrorKind,
    Unreachable,
)

NAMENODES = ("http://one:9870", "http://two:9870")


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
    error = refusal("write", "/x", exception, message)
    assert type(error) is kind
    with pytest.raises(kind, match=f"Cannot write /x on HDFS: .*{told}"):
        raise error
    assert "\n" not in str(error)


@pytest.mark.parametrize(
    ("url", "trouble", "told"),
    [
        ("http://two:9870/webhdfs", NetworkErrorKind.REFUSED, "the NameNode at two:9870 refuses"),
        ("http://dn:9864/webhdfs", NetworkErrorKind.REFUSED, "the DataNode at dn:9864 refuses"),
        ("http://dn:9864/x", NetworkErrorKind.UNKNOWN_HOST, "no host 'dn'. The NameNode sends"),
        ("http://one:9870/x", NetworkErrorKind.UNKNOWN_HOST, "no host 'one'. Check the URL"),
        ("http://one:9870/x", NetworkErrorKind.SILENT, "the NameNode at one:9870 does not answer"),
        ("http://dn:9864/x", NetworkErrorKind.BROKEN, "to the DataNode at dn:9864 broke (by peer)"),
        ("https://one/x", NetworkErrorKind.TLS, "REQUESTS_CA_BUNDLE"),
    ],
)
def test_a_connection_that_is_not_made_names_its_end(
    url: str, trouble: NetworkErrorKind, told: str
) -> None:
    error = unreachable("read", "/x", Unreachable(url, "by peer\nnow", trouble), NAMENODES)
    assert told in str(error)
    assert "\n" not in str(error)


@pytest.mark.parametrize(
    ("failure", "told"),
    [
        (HttpError(NAMENODES[0], "<html>", None, 401), "kinit"),
        (HttpError(NAMENODES[0], "<html>", None, 503), "status 503"),
        (HttpError(NAMENODES[0], "<html>", None, 404), "not WebHDFS"),
        (Unreachable(NAMENODES[0], "", NetworkErrorKind.REFUSED), "refuses"),
    ],
)
def test_every_failure_is_explained(failure: AttemptFailure, told: str) -> None:
    error = explain("read", "/x", failure, namenodes=NAMENODES, kerberos=False)
    assert not isinstance(error, AttemptFailure)
    assert told in str(error)


def test_who_asks_is_told_what_to_do() -> None:
    assert "kinit" in str(not_authenticated("list", "/", kerberos=True))
    keytab = Keytab("ada@GRID", "/home/ada/ada.keytab")
    told = str(not_authenticated("list", "/", kerberos=keytab))
    assert keytab.file in told
    assert keytab.principal in told
    assert "--kerberos" in str(not_authenticated("list", "/", kerberos=False))
