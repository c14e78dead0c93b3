"""Finds the addresses of YARN's pages in Hadoop's configuration files."""

from __future__ import annotations

import getpass
import os
from collections.abc import Mapping

from distkeras_grid.errors import ConfigurationError
from distkeras_grid.tickets import Keytab
from distkeras_grid.webhdfs.addresses import Address
from distkeras_grid.webhdfs.sites import read_sites

SITES = ("core-site.xml", "yarn-site.xml")
DEFAULT_PORTS = {"http": 8088, "https": 8090}


def resourcemanager_urls(sites: Mapping[str, str]) -> tuple[str, ...]:
    """Return the addresses of the pages of all ResourceManagers.

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
        name: sites.get(f"yarn.resourcemanager.{name}{ending}", "")
        for name in (kind, "hostname", "address")
    }
    host, _, port = known[kind].rpartition(":")
    if host in ("", "0.0.0.0"):
        host = known["hostname"] or known["address"].rpartition(":")[0]
    if host in ("", "0.0.0.0") or "${" in host + port:
        received = ", ".join(
            f"yarn.resourcemanager.{name}{ending} = {value or 'nothing'}"
            for name, value in known.items()
        )
        raise ConfigurationError(
            "The yarn-site.xml in HADOOP_CONF_DIR does not tell where the ResourceManager is. "
            f"Received: {received}."
        )
    return f"{http}://{host}:{port or DEFAULT_PORTS[http]}"


def find_resourcemanager(
    keytab: Keytab | None = None, *, environment: Mapping[str, str] | None = None
) -> Address:
    """Return how to reach the ResourceManager's page.

    `keytab`: gets the tickets where the pages want one, as ``hadoop.http.authentication.type`` of
    the configuration says. On many clusters with Kerberos they want none.
    """
    from distkeras_grid.submission.spark_submit import check_hadoop_settings

    variables = os.environ if environment is None else environment
    check_hadoop_settings(variables)
    folders = (variables.get("HADOOP_CONF_DIR"), variables.get("YARN_CONF_DIR"))
    sites = read_sites(*filter(None, folders), names=SITES)
    kerberos = sites.get("hadoop.http.authentication.type", "").lower() == "kerberos"
    user = variables.get("HADOOP_USER_NAME") or getpass.getuser()
    return Address(resourcemanager_urls(sites), user, kerberos and (keytab or True))
