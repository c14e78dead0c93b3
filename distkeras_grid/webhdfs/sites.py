"""Hadoop's configuration files, with the parts of their syntax that name addresses."""

from __future__ import annotations

import os
import re
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from pathlib import Path

from distkeras_grid.errors import ConfigurationError

SITES = ("core-site.xml", "hdfs-site.xml")
# As in Hadoop's Configuration: so deep a value may refer to others.
MOST_REFERENCES = 20

_REFERENCE = re.compile(r"\$\{([^${}\s]+)\}")


def read_site(file: Path) -> dict[str, str]:
    """Return the properties in one of Hadoop's configuration files."""
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
    named = {each.findtext("name"): each.findtext("value") for each in root.iter("property")}
    return {name.strip(): (value or "").strip() for name, value in named.items() if name}


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
    for _ in range(MOST_REFERENCES):
        value = _REFERENCE.sub(lambda match: properties.get(match[1], match[0]), value)
    return value
