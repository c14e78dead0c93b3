from __future__ import annotations

import pytest

from distkeras_grid.errors import NoSpaceError, OutputExistsError, PathNotFoundError, StorageError
from distkeras_grid.webhdfs.refusals import not_authenticated, refusal, unreachable

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
            "DataNodes are full",
        ),
        ("AccessControlException", "Permission denied: user=a", StorageError, "the permission"),
        ("AccessControlException", "/x (is not a directory)", StorageError, "part of the path is"),
        ("SafeModeException", "Name node is in safe mode.\nThe", StorageError, "-safemode leave"),
        ("RetriableException", "... is in safe mode", StorageError, "-safemode leave"),
        ("StandbyException", "READ is not supported", StorageError, "addresses of both"),
        ("IOException", "first.\nsecond", StorageError, "IOException: first$"),
        (None, "<html>\n<head>", StorageError, "not WebHDFS .<html>.; check the URL"),
    ],
)
def test_what_hdfs_says_becomes_one_line_of_ours(
    exception: str | None, message: str, kind: type[StorageError], told: str
) -> None:
    error = refusal("write", "/x", exception, message)
    assert type(error) is kind
    with pytest.raises(kind, match=f"cannot write /x on HDFS: .*{told}"):
        raise error
    assert "\n" not in str(error)


@pytest.mark.parametrize(
    ("url", "reason", "told"),
    [
        ("http://two:9870/webhdfs", "[Errno 111] Connection refused", "NameNode at two:9870 ref"),
        ("http://dn:9864/webhdfs", "Connection refused", "the DataNode at dn:9864 refuses"),
        ("http://dn:9864/x", "Failed to resolve 'dn'", "no host 'dn'; the NameNode sends"),
        ("http://one:9870/x", "Failed to resolve 'one'", "no host 'one'; check the URL"),
        (None, "Read timed out", "the NameNode at one:9870 does not answer"),
        ("http://dn:9864/x", "Connection aborted\nby peer", "to DataNode at dn:9864 broke"),
        ("https://one/x", "SSLError(certificate verify failed)", "REQUESTS_CA_BUNDLE"),
    ],
)
def test_a_connection_that_is_not_made_names_its_end(
    url: str | None, reason: str, told: str
) -> None:
    error = unreachable("read", "/x", url, NAMENODES, reason)
    assert told in str(error)
    assert "\n" not in str(error)


def test_who_asks_is_told_what_to_do() -> None:
    assert "kinit" in str(not_authenticated("list", "/", kerberos=True))
    assert "--kerberos" in str(not_authenticated("list", "/", kerberos=False))
