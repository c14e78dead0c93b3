"""What an environment archive contains: a relocatable interpreter and the packages it needs.

It is a whole prefix, not a virtual environment, so it runs wherever it is unpacked, also on nodes
without Python. The number of files decides how long it takes to unpack, so files that no job needs
are left out.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from distkeras_grid.errors import EnvironmentMismatchError
from distkeras_grid.submission.installed_packages import InstalledPackages

# Increase this when archives of the same packages are built in another way.
LAYOUT = 1
#: Name of the unpacked archive in a container's working directory.
LINK = "environment"
PYTHON = "bin/python"

PRUNED_SUFFIXES = (".pyc", ".pyi", ".h", ".hpp", ".pxd", ".pyx", ".a", ".o")
PRUNED_NAMES = ("__pycache__", "tests")
# Folders and files, relative to site-packages and to the standard library.
PRUNED_PACKAGES = (
    "tensorflow/include",
    "torch/include",
    "pyarrow/include",
    "pyarrow/src",
    "pyarrow/tests",
)
PRUNED_STDLIB = (
    *("site-packages", "dist-packages", "test", "idlelib", "turtledemo", "tkinter"),
    *("ensurepip", "lib2to3", "distutils/tests", "pydoc_data"),
)


@dataclass(frozen=True)
class Interpreter:
    """The interpreter of this environment, which is copied."""

    version: str  # Version of Python, such as ``"3.11.7"``
    # System, machine and C library. Nodes need the same machine and a C library at least as new.
    platform: str
    executable: Path  # The interpreter's file
    # prefix and stdlib and platform_stdlib: Folders of the installation. Both libraries are below
    # the prefix.
    prefix: Path
    stdlib: Path
    platform_stdlib: Path
    site_packages: PurePosixPath  # Path relative to the prefix


@dataclass(frozen=True, order=True)
class Member:
    """A file of the archive."""

    name: str  # Path of the file in the archive
    source: Path  # Path of the file on this machine


def archive_name(interpreter: Interpreter, distributions: Iterable[InstalledPackages]) -> str:
    """Return the archive's file name, with a digest of everything that decides its content."""
    content = {
        "layout": LAYOUT,
        "python": interpreter.version,
        "platform": interpreter.platform,
        "packages": sorted([each.pin, each.record] for each in distributions),
        "pruned": [PRUNED_SUFFIXES, PRUNED_NAMES, PRUNED_PACKAGES, PRUNED_STDLIB],
    }
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    return f"environment-{interpreter.version}-{digest[:16]}.tar.gz"


def is_included(path: PurePosixPath, pruned: Sequence[str]) -> bool:
    """Tell whether a file goes into the archive.

    Examples
    --------
    >>> is_included(PurePosixPath("tensorflow/_api/v2/test/__init__.py"), PRUNED_PACKAGES)
    True
    >>> is_included(PurePosixPath("tensorflow/include/a.inc"), PRUNED_PACKAGES)
    False
    """
    if path.suffix in PRUNED_SUFFIXES or any(name in PRUNED_NAMES for name in path.parts):
        return False
    return not any(path.is_relative_to(folder) for folder in pruned)


def package_members(site_packages: PurePosixPath, each: InstalledPackages) -> list[Member]:
    """Return the files of a distribution that go into the archive."""
    members = []
    for path in each.files:
        if not is_included(path, PRUNED_PACKAGES):
            continue
        source = each.folder / path
        if not source.is_file():
            raise EnvironmentMismatchError(
                f"{each.name} {each.version} is incomplete: {source} is missing. Reinstall it: "
                f"pip install --force-reinstall {each.name}."
            )
        members.append(Member(str(site_packages / path), source))
    return members


def stdlib_members(interpreter: Interpreter) -> list[Member]:
    """Return the files of the standard library that go into the archive."""
    members: dict[str, Path] = {}
    for folder in (interpreter.stdlib, interpreter.platform_stdlib):
        for source in folder.rglob("*"):
            path = PurePosixPath(source.relative_to(folder))
            is_needed = is_included(path, PRUNED_STDLIB) and not path.parts[0].startswith("config-")
            if is_needed and source.is_file():
                members[str(source.relative_to(interpreter.prefix))] = source
    return [Member(name, source) for name, source in members.items()]
