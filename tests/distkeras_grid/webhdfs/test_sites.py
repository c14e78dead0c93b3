from __future__ import annotations

import errno
from pathlib import Path

import pytest

from distkeras_grid.errors import ConfigurationError
from distkeras_grid.sandbox.configuration import render_site
from distkeras_grid.webhdfs.sites import read_site, read_sites


def test_a_folder_without_files_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"holds neither core-site.xml nor hdfs-site.xml"):
        read_sites(tmp_path)


def test_references_are_resolved(tmp_path: Path) -> None:
    core = {"host": "nn.${domain}", "domain": "lab", "a": "${b}", "b": "${a}", "rule": "$1@$0"}
    hdfs = {"dfs.namenode.http-address": "${host}:9870", "unknown": "${nothing}"}
    (tmp_path / "core-site.xml").write_text(render_site(core))
    (tmp_path / "hdfs-site.xml").write_text(render_site(hdfs))
    found = read_sites(tmp_path)
    assert found["dfs.namenode.http-address"] == "nn.lab:9870"
    assert (found["unknown"], found["rule"]) == ("${nothing}", "$1@$0")
    assert found["a"].startswith("${")  # a circle ends


def test_a_site_file_is_read_in_the_encoding_that_it_names(tmp_path: Path) -> None:
    head = '<?xml version="1.0" encoding="ISO-8859-1"?><!-- für alle -->'
    site = render_site({"a.b": "ü", "c": "<1>", "d": ""}).partition("?>")[2]
    (tmp_path / "core-site.xml").write_bytes(f"{head}{site}".encode("latin-1"))
    assert read_sites(tmp_path) == {"a.b": "ü", "c": "<1>", "d": ""}


@pytest.mark.parametrize(
    "content", [b"<configuration>", b"\xff\xfe\xff", b'<?xml version="1.0" encoding="x"?><a/>']
)
def test_a_site_file_that_is_not_xml_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "core-site.xml").write_bytes(content)
    with pytest.raises(ConfigurationError, match=r"core-site\.xml: .* is not XML"):
        read_sites(tmp_path)


def test_a_site_file_that_may_not_be_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On an edge node its rights may be those of a service; it was a traceback."""

    def refused(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    (tmp_path / "core-site.xml").write_text(render_site({}))
    monkeypatch.setattr(Path, "read_bytes", refused)
    with pytest.raises(ConfigurationError, match=r"core-site\.xml.*Permission denied"):
        read_site(tmp_path / "core-site.xml")
