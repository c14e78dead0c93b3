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
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from distkeras_grid.errors import ConfigurationError
from distkeras_grid.tickets import Keytab

DEFAULT_PORTS = {"http": 9870, "https": 9871}  # of Hadoop 3
WEB_SCHEMES = {"webhdfs": "http", "swebhdfs": "https"}
SITES = ("core-site.xml", "hdfs-site.xml")
# Spark's client for YARN puts the submitting host's configuration here, below the working directory
# of each container. Most clusters do not set HADOOP_CONF_DIR there.
SHIPPED = "__spark_conf__/__hadoop_conf__"

_WHOLE = re.compile(r"(?P<scheme>[a-z0-9]+)://(?P<authority>[^/]*)(?P<path>/.*)?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Address:
    """How to reach WebHDFS.

    Parameters
    ----------
    urls : tuple of str
        URL of the NameNode, or of each one of a highly available nameservice.
    user : str
        Who asks, where the cluster believes what it is told.
    kerberos : bool or Keytab, default False
        Whether the user proves that by a Kerberos ticket, and with whose keys it is got where
        ``kinit`` has not done that.
    """

    urls: tuple[str, ...]
    user: str
    kerberos: bool | Keytab = False


@dataclass(frozen=True, slots=True)
class HdfsPath:
    """A path as the user gave it.

    Parameters
    ----------
    path : str
        From the root, normalized.
    scheme, authority : str, default ""
        Before it.
    inside : bool, default False
        Whether it ended in a slash: what lies in the folder is meant, or a place in it.
    """

    path: str
    scheme: str = ""
    authority: str = ""
    inside: bool = False


def parse_path(text: str) -> HdfsPath:
    """Split a path into its parts.

    Raises
    ------
    ConfigurationError
        If it is relative, or of another file system.

    Examples
    --------
    >>> parse_path("hdfs://grid/raw//day 1/")
    HdfsPath(path='/raw/day 1', scheme='hdfs', authority='grid', inside=True)
    """
    match = _WHOLE.fullmatch(text)
    scheme, authority, path = match.group("scheme", "authority", "path") if match else ("", "", "")
    if not match:
        path = text
    if scheme not in ("", "hdfs", *WEB_SCHEMES) or not (path or match):
        raise ConfigurationError(
            f"This is not a path on HDFS. Received: {text!r}. Give /path, hdfs:///path or "
            "webhdfs://HOST:PORT/path."
        )
    path = path or "/"
    if not path.startswith("/"):
        raise ConfigurationError(f"A path on HDFS begins with '/'. Received: {text!r}.")
    # normpath keeps two slashes at the beginning.
    whole = posixpath.normpath("/" + path.lstrip("/"))
    return HdfsPath(whole, scheme, authority, inside=path.endswith(("/", "/.", "/..")))


def parse_site(content: str | bytes) -> dict[str, str]:
    """Return the properties of one of Hadoop's configuration files.

    Parameters
    ----------
    content : str or bytes
        Bytes are in the encoding that they name.

    Raises
    ------
    ConfigurationError
        If it is not XML.
    """
    try:
        root = ET.fromstring(content)
    except (ET.ParseError, ValueError, LookupError) as error:
        raise ConfigurationError(f"A configuration file of Hadoop is not XML ({error}).") from error
    found = ((each.findtext("name"), each.findtext("value")) for each in root.iter("property"))
    return {name.strip(): (value or "").strip() for name, value in found if name}


def read_site(file: Path) -> dict[str, str]:
    """Return the properties in one of Hadoop's configuration files.

    Raises
    ------
    ConfigurationError
        If it cannot be read, or is not XML. Names the file.
    """
    try:
        return parse_site(file.read_bytes())
    except OSError as error:
        raise ConfigurationError(
            f"{file} cannot be read: {error.strerror}. Ask for the right to read it, or set "
            "HADOOP_CONF_DIR to a copy of the cluster's configuration."
        ) from error
    except ConfigurationError as error:
        raise ConfigurationError(f"{file}: {error}") from error


def read_sites(folder: str | os.PathLike[str]) -> dict[str, str]:
    """Return the properties of a ``HADOOP_CONF_DIR``.

    Raises
    ------
    ConfigurationError
        If neither file is there, or one cannot be read, or is not XML.
    """
    files = [Path(folder, name) for name in SITES if Path(folder, name).is_file()]
    if not files:
        raise ConfigurationError(
            f"HADOOP_CONF_DIR={os.fspath(folder)} holds neither {' nor '.join(SITES)}."
        )
    properties: dict[str, str] = {}
    for file in files:
        properties |= read_site(file)
    return properties


def namenode_urls(sites: Mapping[str, str], authority: str = "") -> tuple[str, ...]:
    """Return the HTTP addresses of the NameNodes that hold the paths of an authority.

    Parameters
    ----------
    sites : mapping
        Properties in ``core-site.xml`` and ``hdfs-site.xml``.
    authority : str, default ""
        A nameservice, or ``host:port`` of a NameNode; that of ``fs.defaultFS`` by default.

    Raises
    ------
    ConfigurationError
        If the configuration knows no NameNode of that authority.

    Examples
    --------
    >>> namenode_urls({"fs.defaultFS": "hdfs://master:8020"})
    ('http://master:9870',)
    """
    default = parse_default(sites.get("fs.defaultFS", ""))
    scheme, service = ("hdfs", authority) if authority else default
    if scheme in WEB_SCHEMES:
        return (f"{WEB_SCHEMES[scheme]}://{service}",)
    http = "https" if sites.get("dfs.http.policy") == "HTTPS_ONLY" else "http"
    services = _names(sites.get("dfs.nameservices", ""))
    if service in services:
        nodes = _names(sites.get(f"dfs.ha.namenodes.{service}", ""))
        endings = [f".{service}.{node}" for node in nodes] or [f".{service}"]
    elif service and service == default[1]:
        endings = [""]
    else:
        known = ", ".join([*services, default[1]]) if default[1] else ", ".join(services)
        raise ConfigurationError(
            f"The configuration in HADOOP_CONF_DIR knows no HDFS {service!r} (it knows: "
            f"{known or 'none'}). Give the address of its NameNode by --url or WEBHDFS_URL."
        )
    return tuple(_node_url(sites, http, ending, service) for ending in endings)


def parse_default(default: str) -> tuple[str, str]:
    """Return scheme and authority of ``fs.defaultFS``; both empty where it is not HDFS."""
    match = _WHOLE.fullmatch(default)
    if match is None or match["scheme"] not in ("hdfs", *WEB_SCHEMES):
        return "", ""
    return match["scheme"], match["authority"]


def find_address(
    path: HdfsPath,
    *,
    url: str | None = None,
    kerberos: bool | Keytab | None = None,
    environment: Mapping[str, str] | None = None,
) -> Address:
    """Return how to reach the HDFS of a path.

    Parameters
    ----------
    path : HdfsPath
        One that names the HTTP address itself is believed first.
    url : str, optional
        Such as ``"http://namenode:9870"``; several, of one nameservice, with ``;`` between them.
    kerberos : bool or Keytab, optional
        A keytab gets tickets of its own. By default as ``hadoop.security.authentication`` of the
        configuration says.
    environment : mapping, optional
        Looked up: ``WEBHDFS_URL``, ``HADOOP_CONF_DIR``, ``PWD`` (of a container of YARN) and
        ``HADOOP_USER_NAME``; by default this process's.

    Raises
    ------
    ConfigurationError
        If nothing tells the address, or what tells it cannot be read.
    """
    variables = os.environ if environment is None else environment
    folder = variables.get("HADOOP_CONF_DIR") or _shipped(variables.get("PWD", ""))
    told = url or variables.get("WEBHDFS_URL", "")
    sites = read_sites(folder) if folder else {}
    if path.scheme in WEB_SCHEMES:
        urls: tuple[str, ...] = (f"{WEB_SCHEMES[path.scheme]}://{path.authority}",)
    elif told:
        urls = tuple(each.strip().rstrip("/") for each in told.split(";") if each.strip())
    elif sites:
        urls = namenode_urls(sites, path.authority)
    else:
        raise ConfigurationError(
            "Nothing tells where WebHDFS answers: give --url http://NAMENODE:9870, or set "
            "WEBHDFS_URL or HADOOP_CONF_DIR, for executors by spark.executorEnv.WEBHDFS_URL."
        )
    for each in urls:
        if not re.fullmatch(r"https?://[^/\s]+(/\S*)?", each):
            raise ConfigurationError(
                f"The address of WebHDFS looks like http://namenode:9870. Received: {each!r}."
            )
    if kerberos is None:
        kerberos = sites.get("hadoop.security.authentication", "").lower() == "kerberos"
    user = variables.get("HADOOP_USER_NAME") or getpass.getuser()
    return Address(urls, user, kerberos)


def _shipped(working: str) -> str:
    """Return the folder of Hadoop's configuration in a container of YARN; empty elsewhere."""
    folder = Path(working, SHIPPED)
    there = working and any((folder / name).is_file() for name in SITES)
    return str(folder) if there else ""


def _node_url(sites: Mapping[str, str], http: str, ending: str, service: str) -> str:
    rpc = sites.get(f"dfs.namenode.rpc-address{ending}", service)
    address = sites.get(f"dfs.namenode.{http}-address{ending}", "")
    host, _, port = address.rpartition(":")
    if host in ("", "0.0.0.0"):
        host = rpc.partition(":")[0]
    return f"{http}://{host}:{port or DEFAULT_PORTS[http]}"


def _names(listed: str) -> list[str]:
    return [name.strip() for name in listed.split(",") if name.strip()]
