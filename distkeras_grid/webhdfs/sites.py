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
    old = {new: properties[name] for name, new in OLD_NAMES.items() if name in properties}
    return old | properties


def read_sites(
    folder: str | os.PathLike[str], *more: str | os.PathLike[str], names: tuple[str, ...] = SITES
) -> dict[str, str]:
    """Return the properties of a ``HADOOP_CONF_DIR``, their references resolved."""
    paths = [Path(each, name) for each in (folder, *more) for name in names]
    files = [path for path in paths if path.is_file()]
    if not files:
        raise ConfigurationError(
            f"HADOOP_CONF_DIR={os.fspath(folder)} holds neither {' nor '.join(names)}."
        )
    properties = {name: value for file in files for name, value in read_site(file).items()}
    return {name: resolved(value, properties) for name, value in properties.items()}


def resolved(value: str, properties: Mapping[str, str]) -> str:
    """Replace ``${name}`` as Hadoop does; what nothing tells stays as it is.

    Examples
    --------
    >>> resolved("${host}:9870", {"host": "${node}.lab", "node": "nn1"})
    'nn1.lab:9870'
    """

    def referred(match: re.Match[str]) -> str:
        if match[1].startswith("env."):
            variable, _, default = match[1].removeprefix("env.").partition("-")
            return os.environ.get(variable.rstrip(":")) or default or match[0]
        return properties.get(match[1], match[0])

    for _ in range(MOST_REFERENCES):
        value = _REFERENCE.sub(referred, value)
    return value


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
            if not depth:
                raise ConfigurationError(f"{file} includes {other} again and again; end that.")
            # An include with a fallback may be missing.
            if other.is_file() or not len(element):
                yield from _properties(other, depth - 1)
