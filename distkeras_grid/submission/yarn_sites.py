"""Finds the addresses of YARN's pages in Hadoop's configuration files."""

from __future__ import annotations

import getpass
import os
import re
from collections.abc import Mapping
from pathlib import Path

from distkeras_grid.errors import ConfigurationError
from distkeras_grid.tickets import Keytab
from distkeras_grid.webhdfs.addresses import Address, read_site

SITES = ("core-site.xml", "yarn-site.xml")
DEFAULT_PORTS = {"http": 8088, "https": 8090}

_VARIABLE = re.compile(r"\$\{([^}]+)\}")


def resourcemanager_urls(sites: Mapping[str, str]) -> tuple[str, ...]:
    """Return the addresses of the pages of all ResourceManagers.

    Parameters
    ----------
    sites : mapping
        Properties in ``core-site.xml`` and ``yarn-site.xml``.

    Raises
    ------
    ConfigurationError
        If they do not name a host.

    Examples
    --------
    >>> resourcemanager_urls({"yarn.resourcemanager.hostname": "master"})
    ('http://master:8088',)
    """
    http = "https" if sites.get("yarn.http.policy") == "HTTPS_ONLY" else "http"
    several = sites.get("yarn.resourcemanager.ha.enabled", "").lower() == "true"
    names = sites.get("yarn.resourcemanager.ha.rm-ids", "").split(",") if several else []
    endings = [f".{name.strip()}" for name in names if name.strip()] or [""]
    return tuple(_url(sites, http, ending) for ending in endings)


def _url(sites: Mapping[str, str], http: str, ending: str) -> str:
    kind = "webapp.https.address" if http == "https" else "webapp.address"
    known = {
        name: _expanded(sites.get(f"yarn.resourcemanager.{name}{ending}", ""), sites)
        for name in (kind, "hostname", "address")
    }
    host, _, port = known[kind].rpartition(":")
    if host in ("", "0.0.0.0"):
        host = known["hostname"] or known["address"].rpartition(":")[0]
    if host in ("", "0.0.0.0"):
        raise ConfigurationError(
            "The yarn-site.xml in HADOOP_CONF_DIR does not tell where the ResourceManager is. "
            f"Received: no yarn.resourcemanager.{kind}{ending} and no "
            f"yarn.resourcemanager.hostname{ending}."
        )
    return f"{http}://{host}:{port or DEFAULT_PORTS[http]}"


def _expanded(value: str, sites: Mapping[str, str]) -> str:
    """Replace ``${name}`` by the property of that name, as Hadoop does (at most 20 times)."""
    for _ in range(20):
        if not (found := _VARIABLE.search(value)):
            break
        value = value.replace(found.group(), sites.get(found.group(1), ""))
    return value


def find_resourcemanager(
    keytab: Keytab | None = None, *, environment: Mapping[str, str] | None = None
) -> Address:
    """Return how to reach the ResourceManager's page.

    Parameters
    ----------
    keytab : Keytab, optional
        Gets the tickets where the pages want one, as ``hadoop.http.authentication.type`` of the
        configuration says. On many clusters with Kerberos they want none.
    environment : mapping, optional
        Variables ``HADOOP_CONF_DIR``, ``YARN_CONF_DIR`` and ``HADOOP_USER_NAME``; by default those
        of this process.

    Raises
    ------
    ConfigurationError
        If no variable is set, or the files do not contain the address.
    """
    from distkeras_grid.submission.spark_submit import check_hadoop_settings

    variables = os.environ if environment is None else environment
    check_hadoop_settings(variables)
    sites: dict[str, str] = {}
    for folder in (variables.get("HADOOP_CONF_DIR"), variables.get("YARN_CONF_DIR")):
        for name in SITES:
            if folder and (file := Path(folder, name)).is_file():
                sites |= read_site(file)
    kerberos = sites.get("hadoop.http.authentication.type", "").lower() == "kerberos"
    user = variables.get("HADOOP_USER_NAME") or getpass.getuser()
    return Address(resourcemanager_urls(sites), user, kerberos and (keytab or True))
