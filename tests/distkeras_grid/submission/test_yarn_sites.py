"""Where YARN's pages are, by Hadoop's configuration files."""

from __future__ import annotations

from pathlib import Path

import pytest

from distkeras_grid.errors import ConfigurationError
from distkeras_grid.sandbox.configuration import render_site
from distkeras_grid.submission.yarn_sites import find_resourcemanager, resourcemanager_urls
from distkeras_grid.tickets import Keytab

RM = "yarn.resourcemanager."


@pytest.mark.parametrize(
    ("sites", "urls"),
    [
        ({f"{RM}webapp.address": "a:1"}, ("http://a:1",)),
        ({f"{RM}hostname": "a", f"{RM}webapp.address": "0.0.0.0:1"}, ("http://a:1",)),
        ({f"{RM}address": "b:8032"}, ("http://b:8088",)),
        ({f"{RM}hostname": "a", "yarn.http.policy": "HTTPS_ONLY"}, ("https://a:8090",)),
        (
            {
                f"{RM}ha.enabled": "true",
                f"{RM}ha.rm-ids": "x, y",
                f"{RM}hostname.x": "a",
                f"{RM}webapp.address.y": "b:2",
            },
            ("http://a:8088", "http://b:2"),
        ),
    ],
)
def test_addresses(sites: dict[str, str], urls: tuple[str, ...]):
    assert resourcemanager_urls(sites) == urls


@pytest.mark.parametrize("sites", [{}, {f"{RM}webapp.address": f"${{{RM}webapp.address}}"}])
def test_what_tells_no_host(sites: dict[str, str]):
    with pytest.raises(ConfigurationError):
        resourcemanager_urls(sites)


def test_the_files_of_the_variables_are_read(tmp_path: Path):
    security = {"hadoop.http.authentication.type": "kerberos"}
    (tmp_path / "core-site.xml").write_text(render_site(security))
    yarn = {f"{RM}hostname": "a", f"{RM}webapp.address": f"${{{RM}hostname}}:8088"}
    (tmp_path / "yarn-site.xml").write_text(render_site(yarn))
    found = find_resourcemanager(
        environment={"HADOOP_CONF_DIR": str(tmp_path), "HADOOP_USER_NAME": "me"}
    )
    assert (found.urls, found.user, found.kerberos) == (("http://a:8088",), "me", True)
    keytab = Keytab("ada@GRID", "ada.keytab")
    folder = {"HADOOP_CONF_DIR": str(tmp_path)}
    assert find_resourcemanager(keytab, environment=folder).kerberos == keytab
    # Pages that want no ticket are not given one.
    (tmp_path / "core-site.xml").unlink()
    assert find_resourcemanager(keytab, environment=folder).kerberos is False
    (tmp_path / "yarn-site.xml").write_text("<")
    with pytest.raises(ConfigurationError, match=r"yarn-site\.xml"):
        find_resourcemanager(environment={"YARN_CONF_DIR": str(tmp_path)})
    with pytest.raises(ConfigurationError):
        find_resourcemanager(environment={})
