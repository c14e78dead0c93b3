"""Resolve a path of HDFS to the address of WebHDFS and the path there.

A path is plain (``/raw``), or ``hdfs:///raw``, ``hdfs://NAMESERVICE/raw``, or names the HTTP
address itself: ``webhdfs://namenode:9870/raw``. Where it does not, the address comes from an
argument, from the environment (``WEBHDFS_URL``), or from Hadoop's own configuration files. A
container of YARN has those of the host that submitted the job.
"""

from __future__ import annotations

import getpass
import os
import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from distkeras_grid.errors import ConfigurationError
from distkeras_grid.tickets import Keytab
from distkeras_grid.webhdfs.sites import SITES, read_sites

DEFAULT_PORTS = {"http": 9870, "https": 9871}  # of Hadoop 3
WEB_SCHEMES = {"webhdfs": "http", "swebhdfs": "https"}
# Where WebHDFS begins below its address.
PREFIX = "/webhdfs/v1"
# Spark's client for YARN puts the submitting host's configuration here, below the working directory
# of each container. Most clusters do not set HADOOP_CONF_DIR there.
SHIPPED = "__spark_conf__/__hadoop_conf__"

_WHOLE = re.compile(r"(?P<scheme>[a-z0-9]+)://(?P<authority>[^/]*)(?P<path>/.*)?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Address:
    """How to reach WebHDFS."""

    urls: tuple[str, ...]  # URL of the NameNode, or of each one of a highly available nameservice
    user: str  # Who asks, where the cluster believes what it is told
    # Whether the user proves that by a Kerberos ticket, and with whose keys it is got where
    # ``kinit`` has not done that
    kerberos: bool | Keytab = False


@dataclass(frozen=True, slots=True)
class HdfsPath:
    """A path as the user gave it."""

    path: str  # From the root, normalized
    scheme: str = ""  # scheme and authority: Before it
    authority: str = ""
    # Whether it ended in a slash: what lies in the folder is meant, or a place in it
    inside: bool = False


def parse_path(text: str) -> HdfsPath:
    """Split a path into its parts.

    Examples
    --------
    >>> parse_path("hdfs://grid/raw//day 1/")
    HdfsPath(path='/raw/day 1', scheme='hdfs', authority='grid', inside=True)
    """
    match = _WHOLE.fullmatch(text)
    scheme, authority, path = match.group("scheme", "authority", "path") if match else ("", "", "")
    path = (path or "/") if match else text
    if scheme not in ("", "hdfs", *WEB_SCHEMES) or not path.startswith("/"):
        raise ConfigurationError(
            f"This is not a path on HDFS. Received: {shown(text)!r}. Give /path, hdfs:///path or "
            "webhdfs://HOST:PORT/path."
        )
    # normpath keeps two slashes at the beginning.
    whole = posixpath.normpath("/" + path.lstrip("/"))
    return HdfsPath(whole, scheme, authority, inside=path.endswith(("/", "/.", "/..")))


def namenode_urls(sites: Mapping[str, str], authority: str = "") -> tuple[str, ...]:
    """Return the HTTP addresses of the NameNodes that hold the paths of an authority.

    Examples
    --------
    >>> namenode_urls({"fs.defaultFS": "hdfs://master:8020"}, "Master")
    ('http://master:9870',)
    """
    default = sites.get("fs.defaultFS", "")
    match = _WHOLE.fullmatch(default)
    scheme, service = (match["scheme"], match["authority"]) if match else ("", "")
    if scheme in WEB_SCHEMES and not authority:
        return (f"{WEB_SCHEMES[scheme]}://{service}",)
    service = service if scheme == "hdfs" else ""
    if not (authority or service):
        raise ConfigurationError(
            "The configuration in HADOOP_CONF_DIR does not tell which HDFS a path without a host "
            f"means. Received: fs.defaultFS {default!r}. Give hdfs://NAMENODE/path, or the "
            "address of its NameNode by --url or WEBHDFS_URL."
        )
    known = _nameservices(sites, service)
    if (name := known.get(_endpoint(authority or service))) is None:
        raise ConfigurationError(
            f"The configuration in HADOOP_CONF_DIR knows no HDFS {authority!r} (it knows: "
            f"{', '.join(dict.fromkeys(known.values())) or 'none'}). Give the address of its "
            "NameNode by --url or WEBHDFS_URL."
        )
    return tuple(_node_url(sites, ending, name) for ending in _endings(sites, name))


def _nameservices(sites: Mapping[str, str], default: str) -> dict[str, str]:
    """Return the names of the services, by the endpoints of their names and their NameNodes."""
    known: dict[str, str] = {}
    for service in _names(sites.get("dfs.nameservices", "")):
        endings = _endings(sites, service)
        addresses = [sites.get(f"dfs.namenode.rpc-address{ending}", "") for ending in endings]
        known |= {_endpoint(each): service for each in (service, *addresses) if each}
    return ({_endpoint(default): default} if default else {}) | known


def _endings(sites: Mapping[str, str], service: str) -> list[str]:
    """Return how the settings of a service's NameNodes end."""
    if service not in _names(sites.get("dfs.nameservices", "")):
        return [""]
    nodes = _names(sites.get(f"dfs.ha.namenodes.{service}", ""))
    return [f".{service}.{node}" for node in nodes] or [f".{service}"]


def _endpoint(authority: str) -> str:
    """Return host and port as they are compared: Hadoop's default port, no capital letters."""
    host, colon, port = authority.lower().partition(":")
    return f"{host}:{port}" if colon else f"{host}:8020"


def _node_url(sites: Mapping[str, str], ending: str, service: str) -> str:
    http = "https" if sites.get("dfs.http.policy") == "HTTPS_ONLY" else "http"
    host, _, port = sites.get(f"dfs.namenode.{http}-address{ending}", "").rpartition(":")
    if host in ("", "0.0.0.0"):
        host = sites.get(f"dfs.namenode.rpc-address{ending}", service).partition(":")[0]
    return f"{http}://{host}:{port or DEFAULT_PORTS[http]}"


def _names(listed: str) -> list[str]:
    return [name.strip() for name in listed.split(",") if name.strip()]


def shown(location: str) -> str:
    """Return a location without user and password, for errors, logs and records.

    Examples
    --------
    >>> shown("http://ada:se@cret@host:8080/tiles"), shown("/data/tiles")
    ('http://host:8080/tiles', '/data/tiles')
    """
    scheme, separator, rest = location.partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}{separator}{host.rpartition('@')[2]}{slash}{path}"


def plain_url(url: str) -> str:
    """Return an address of WebHDFS as this package asks it.

    Examples
    --------
    >>> plain_url("https://httpfs:14000/webhdfs/v1/")
    'https://httpfs:14000'
    """
    if not re.fullmatch(r"https?://[^/\s${}@]+(/[^\s@]*)?", url):
        raise ConfigurationError(
            "The address of WebHDFS looks like http://namenode:9870, without a password. Received: "
            f"{re.sub('//.*@', '//', url)!r}."
        )
    return url.rstrip("/").removesuffix(PREFIX).rstrip("/")


def find_address(
    path: HdfsPath,
    *,
    url: str | None = None,
    kerberos: bool | Keytab | None = None,
    environment: Mapping[str, str] | None = None,
) -> Address:
    """Return how to reach the HDFS of a path."""
    variables = os.environ if environment is None else environment
    folder = variables.get("HADOOP_CONF_DIR") or _shipped(variables.get("PWD", ""))
    stated = url or variables.get("WEBHDFS_URL", "")
    sites = read_sites(folder) if folder else {}
    if path.scheme in WEB_SCHEMES:
        urls: tuple[str, ...] = (f"{WEB_SCHEMES[path.scheme]}://{path.authority}",)
    elif stated:
        urls = tuple(each.strip() for each in stated.split(";") if each.strip())
    elif folder:
        urls = namenode_urls(sites, path.authority)
    else:
        raise ConfigurationError(
            "Nothing tells where WebHDFS answers: give --url http://NAMENODE:9870, or set "
            "WEBHDFS_URL or HADOOP_CONF_DIR, for executors by spark.executorEnv.WEBHDFS_URL."
        )
    if kerberos is None:
        kerberos = sites.get("hadoop.security.authentication", "").lower() == "kerberos"
    user = variables.get("HADOOP_USER_NAME") or getpass.getuser()
    return Address(tuple(map(plain_url, urls)), user, kerberos)


def _shipped(working: str) -> str:
    """Return the folder of Hadoop's configuration in a container of YARN; empty elsewhere."""
    folder = Path(working, SHIPPED)
    there = working and any((folder / name).is_file() for name in SITES)
    return str(folder) if there else ""
