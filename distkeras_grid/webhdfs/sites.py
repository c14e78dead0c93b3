"""Hadoop's configuration files, with the parts of their syntax that name addresses."""

from __future__ import annotations

import os
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping
from pathlib import Path

from distkeras_grid.errors import ConfigurationError

SITES = ("core-site.xml", "hdfs-site.xml")
# Names of Hadoop 1 and 2, which Hadoop 3 still takes.
OLD_NAMES = {
    "fs.default.name": "fs.defaultFS",
    "dfs.federation.nameservices": "dfs.nameservices",
    "dfs.http.address": "dfs.namenode.http-address",
    "dfs.https.address": "dfs.namenode.https-address",
}
# As in Hadoop's Configuration: so deep a value may refer to others.
MOST_REFERENCES = 20
MOST_INCLUDES = 16

_INCLUDE = "{http://www.w3.org/2001/XInclude}include"
_REFERENCE = re.compile(r"\$\{([^${}\s]+)\}")


def read_site(file: Path) -> dict[str, str]:
    """Return the properties in one of Hadoop's configuration files, and in those it includes."""
    properties = dict(_properties(file, MOST_INCLUDES))
    return {
        OLD_NAMES[name]: properties[name] for name in OLD_NAMES if name in properties
    } | properties


def read_sites(
    folder: str | os.PathLike[str], *more: str | os.PathLike[str], names: tuple[str, ...] = SITES
) -> dict[str, str]:
    """Return the properties of a ``HADOOP_CONF_DIR``, their references resolved."""
    files = [Path(each, name) for each in (folder, *more) for name in names]
    files = [file for file in files if file.is_file()]
    if not files:
        raise ConfigurationError(
            f"HADOOP_CONF_DIR={os.fspath(folder)} holds neither {' nor '.join(names)}."
        )
    properties: dict[str, str] = {}
    for file in files:
        properties |= read_site(file)
    return {name: resolved(value, properties) for name, value in properties.items()}


def resolved(value: str, properties: Mapping[str, str]) -> str:
    """Replace ``${name}`` as Hadoop does; what nothing tells stays as it is.

    Examples
    --------
    >>> resolved("${host}:9870", {"host": "${node}.lab", "node": "nn1"})
    'nn1.lab:9870'
    """
    for _ in range(MOST_REFERENCES):
        changed = _REFERENCE.sub(lambda match: _referred(match[1], properties, match[0]), value)
        if changed == value:
            break
        value = changed
    return value


def _referred(name: str, properties: Mapping[str, str], unknown: str) -> str:
    if name.startswith("env."):
        variable, _, default = name.removeprefix("env.").partition("-")
        return os.environ.get(variable.rstrip(":")) or default or unknown
    return properties.get(name, unknown)


def _properties(file: Path, depth: int) -> Iterator[tuple[str, str]]:
    try:
        root = ET.fromstring(file.read_bytes())
    except OSError as error:
        raise ConfigurationError(
            f"{file} cannot be read: {error.strerror}. Ask for the right to read it, or set "
            "HADOOP_CONF_DIR to a copy of the cluster's configuration."
        ) from error
    except (ET.ParseError, ValueError, LookupError) as error:
        raise ConfigurationError(
            f"{file}: A configuration file of Hadoop is not XML ({error})."
        ) from error
    for element in root.iter():
        if element.tag == "property" and (name := element.findtext("name")):
            yield name.strip(), (element.findtext("value") or "").strip()
        elif element.tag == _INCLUDE:
            other = file.parent / element.get("href", "").removeprefix("file://")
            # An include with a fallback may be missing.
            if len(element) and not other.is_file():
                continue
            if not depth:
                raise ConfigurationError(f"{file} includes {other} again and again; end that.")
            yield from _properties(other, depth - 1)
