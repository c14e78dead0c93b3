from __future__ import annotations

from pathlib import Path

import pytest

from distkeras_grid.errors import ConfigurationError
from distkeras_grid.sandbox.configuration import render_site
from distkeras_grid.tickets import Keytab
from distkeras_grid.webhdfs.addresses import (
    Address,
    HdfsPath,
    find_address,
    namenode_urls,
    parse_path,
    plain_url,
    shown,
)

HA = {
    "fs.defaultFS": "hdfs://grid",
    "dfs.nameservices": "grid, far",
    "dfs.ha.namenodes.grid": "nn1,nn2",
    "dfs.namenode.http-address.grid.nn1": "one:9870",
    "dfs.namenode.http-address.grid.nn2": "two:9870",
    "dfs.namenode.https-address.grid.nn1": "one:9871",
    "dfs.namenode.https-address.grid.nn2": "two:9871",
    "dfs.namenode.rpc-address.grid.nn1": "one:8020",
    "dfs.namenode.rpc-address.grid.nn2": "two:8020",
    "dfs.namenode.http-address.far": "away:50070",
}


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("/raw", HdfsPath("/raw")),
        ("/", HdfsPath("/", inside=True)),
        ("//raw//a/../b/", HdfsPath("/raw/b", inside=True)),
        ("hdfs:///raw", HdfsPath("/raw", "hdfs")),
        ("hdfs://grid", HdfsPath("/", "hdfs", "grid", inside=True)),
        ("hdfs://nn:8020/a b?#%41", HdfsPath("/a b?#%41", "hdfs", "nn:8020")),
        ("webhdfs://nn:9870/raw/.", HdfsPath("/raw", "webhdfs", "nn:9870", inside=True)),
    ],
)
def test_a_path_is_taken_apart(text: str, path: HdfsPath) -> None:
    assert parse_path(text) == path


@pytest.mark.parametrize("text", ["", "raw", "file:///raw", "s3a://bucket/raw", "./raw"])
def test_what_is_no_path_on_hdfs_is_named(text: str) -> None:
    with pytest.raises(ConfigurationError, match=repr(text)):
        parse_path(text)


@pytest.mark.parametrize(
    ("sites", "authority", "urls"),
    [
        ({"fs.defaultFS": "hdfs://nn"}, "", ("http://nn:9870",)),
        ({"fs.defaultFS": "hdfs://nn:8020"}, "nn:8020", ("http://nn:9870",)),
        (
            {"fs.defaultFS": "hdfs://nn", "dfs.namenode.http-address": "web:50070"},
            "",
            ("http://web:50070",),
        ),
        # The address that a NameNode binds is none that it can be reached at.
        (
            {"fs.defaultFS": "hdfs://nn:8020", "dfs.namenode.http-address": "0.0.0.0:50070"},
            "",
            ("http://nn:50070",),
        ),
        ({"fs.defaultFS": "webhdfs://nn:9870"}, "", ("http://nn:9870",)),
        (HA, "", ("http://one:9870", "http://two:9870")),
        (HA, "grid", ("http://one:9870", "http://two:9870")),
        (HA, "far", ("http://away:50070",)),
        # As Hadoop compares hosts: port 8020 where none is named, whatever the letter case.
        ({"fs.defaultFS": "hdfs://nn:8020"}, "nn", ("http://nn:9870",)),
        ({"fs.defaultFS": "hdfs://nn"}, "nn:8020", ("http://nn:9870",)),
        ({"fs.defaultFS": "hdfs://nn:8020"}, "Nn:8020", ("http://nn:9870",)),
        ({"fs.defaultFS": "hdfs://nn:9000"}, "NN:9000", ("http://nn:9870",)),
        (HA, "GRID", ("http://one:9870", "http://two:9870")),
        (HA, "One", ("http://one:9870", "http://two:9870")),
        (HA, "two:8020", ("http://one:9870", "http://two:9870")),
        (HA | {"dfs.http.policy": "HTTPS_ONLY"}, "", ("https://one:9871", "https://two:9871")),
    ],
)
def test_the_configuration_tells_the_namenodes(
    sites: dict[str, str], authority: str, urls: tuple[str, ...]
) -> None:
    assert namenode_urls(sites, authority) == urls


@pytest.mark.parametrize(
    ("sites", "authority", "known"),
    [
        (HA, "other", r"'other' \(it knows: grid, far\)"),
        (HA, "one:9000", r"'one:9000' \(it knows: grid, far\)"),
        ({"fs.defaultFS": "hdfs://nn:9000"}, "nn", r"'nn' \(it knows: nn:9000\)"),
        ({"fs.defaultFS": "file:///"}, "nn", r"'nn' \(it knows: none\)"),
        ({}, "", "Received: fs.defaultFS ''"),
        ({"fs.defaultFS": "file:///"}, "", "Received: fs.defaultFS 'file:///'"),
        ({"fs.defaultFS": "viewfs://lab"}, "", "'viewfs://lab'"),
    ],
)
def test_an_hdfs_that_the_configuration_does_not_know(
    sites: dict[str, str], authority: str, known: str
) -> None:
    with pytest.raises(ConfigurationError, match=known):
        namenode_urls(sites, authority)


def configuration(folder: Path, site: dict[str, str]) -> dict[str, str]:
    """The environment of a shell whose configuration has this `core-site.xml`."""
    (folder / "core-site.xml").write_text(render_site(site))
    return {"HADOOP_CONF_DIR": str(folder)}


def test_a_configuration_without_hdfs_is_not_asked_for_again(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as raised:
        find_address(HdfsPath("/"), environment=configuration(tmp_path, {}))
    assert "set WEBHDFS_URL or HADOOP_CONF_DIR" not in str(raised.value)


def test_a_reference_that_nothing_resolves_is_no_host(tmp_path: Path) -> None:
    site = {"fs.defaultFS": "hdfs://nn", "dfs.namenode.http-address": "${nn}:9870"}
    with pytest.raises(ConfigurationError, match=r"Received: 'http://\$\{nn\}:9870'"):
        find_address(HdfsPath("/"), environment=configuration(tmp_path, site))


def test_a_container_of_yarn_has_the_configuration_of_who_submitted(tmp_path: Path) -> None:
    shipped = tmp_path / "container" / "__spark_conf__" / "__hadoop_conf__"
    shipped.mkdir(parents=True)
    there = {"PWD": str(tmp_path / "container")}
    with pytest.raises(ConfigurationError):
        find_address(HdfsPath("/"), environment=there)
    configuration(shipped, {"fs.defaultFS": "hdfs://shipped"})
    assert find_address(HdfsPath("/"), environment=there).urls == ("http://shipped:9870",)
    own = there | configuration(tmp_path, {"fs.defaultFS": "hdfs://conf"})
    assert find_address(HdfsPath("/"), environment=own).urls == ("http://conf:9870",)


def test_the_nearest_word_counts(tmp_path: Path) -> None:
    conf = configuration(tmp_path, {"fs.defaultFS": "hdfs://conf"}) | {"HADOOP_USER_NAME": "ada"}
    both = conf | {"WEBHDFS_URL": "http://variable:1"}

    def urls(path: str, environment: dict[str, str], url: str | None = None) -> tuple[str, ...]:
        return find_address(parse_path(path), url=url, environment=environment).urls

    assert urls("/", conf) == ("http://conf:9870",)
    assert urls("/", both) == ("http://variable:1",)
    assert urls("/", both, "http://flag:2/; http://flag:3") == ("http://flag:2", "http://flag:3")
    assert urls("swebhdfs://path:4/", both, "http://flag:2") == ("https://path:4",)
    assert find_address(HdfsPath("/"), environment=conf) == Address(("http://conf:9870",), "ada")
    with pytest.raises(ConfigurationError, match="Nothing tells where WebHDFS answers"):
        urls("/", {})


@pytest.mark.parametrize("url", ["namenode:9870", "hdfs://namenode:8020", "http://a b", "http://"])
def test_an_address_that_is_none_is_named(url: str) -> None:
    with pytest.raises(ConfigurationError, match=url):
        find_address(HdfsPath("/"), url=url, environment={})


@pytest.mark.parametrize(
    ("told", "asked", "kerberos"),
    [("kerberos", None, True), ("simple", None, False), ("simple", True, True)],
)
def test_kerberos_is_told_or_found(
    tmp_path: Path, told: str, asked: bool | None, kerberos: bool
) -> None:
    site = {"fs.defaultFS": "hdfs://nn", "hadoop.security.authentication": told}
    found = find_address(HdfsPath("/"), kerberos=asked, environment=configuration(tmp_path, site))
    assert found.kerberos is kerberos


def test_a_keytab_is_used_whatever_the_configuration_says(tmp_path: Path) -> None:
    keytab = Keytab("ada@GRID", "/home/ada/ada.keytab")
    environment = {"WEBHDFS_URL": "http://namenode:9870"}
    assert find_address(HdfsPath("/"), kerberos=keytab, environment=environment).kerberos == keytab


@pytest.mark.parametrize(
    ("url", "plain"),
    [
        ("http://nn:9870/", "http://nn:9870"),
        ("http://nn:9870/webhdfs/v1", "http://nn:9870"),
        ("http://nn:9870/webhdfs/v1/", "http://nn:9870"),
        ("https://knox/gateway/lab/webhdfs/v1", "https://knox/gateway/lab"),
    ],
)
def test_an_address_is_taken_as_users_write_it(url: str, plain: str) -> None:
    assert plain_url(url) == plain


def test_no_password_is_rendered() -> None:
    for wrong in ("http://ada:secret@nn", "http://ada:se/secret@nn", "ftp://ada:secret@nn"):
        with pytest.raises(ConfigurationError) as raised:
            plain_url(wrong)
        assert "secret" not in str(raised.value)
    with pytest.raises(ConfigurationError) as raised:
        parse_path("https://ada:secret@nn/raw")
    assert "secret" not in str(raised.value)
    assert shown("webhdfs://ada:secret@nn/a@b") == "webhdfs://nn/a@b"
