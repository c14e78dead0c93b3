"""Hidden names: the name of a file while it is written, and how to recognise leftovers."""

from __future__ import annotations

import hashlib
import posixpath
import re
from collections.abc import Iterable

# Spark and Hadoop skip names that begin with "_".
_HIDDEN = re.compile(r"_[0-9a-f]{16}\.[0-9a-f]{8}\.part")


def hidden_name(target: str, run: str) -> str:
    """Return the name under which a file is written until it is complete.

    Examples
    --------
    >>> hidden_name("/raw/a.tif", "0badcafe")
    '/raw/_ed4cf50dec25e5ec.0badcafe.part'
    """
    directory, name = posixpath.split(target)
    return posixpath.join(directory, f"{_beginning(name)}{run}.part")


def is_hidden(path: str) -> bool:
    """Tell whether a path is one of a file that was being written."""
    return _HIDDEN.fullmatch(posixpath.basename(path)) is not None


def leftovers(targets: Iterable[str], present: Iterable[str]) -> list[str]:
    """Return the hidden files that interrupted runs have left for the same targets."""
    ours = set()
    for target in targets:
        directory, name = posixpath.split(target)
        ours.add(posixpath.join(directory, _beginning(name)))
    # Eight digits and ".part" follow.
    return [path for path in present if is_hidden(path) and path[: -len("00000000.part")] in ours]


def _beginning(name: str) -> str:
    # Not the name itself: with an addition it might be longer than a file system takes.
    digest = hashlib.sha256(name.encode("utf-8", "surrogateescape")).hexdigest()
    return f"_{digest[:16]}."
