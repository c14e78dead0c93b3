"""Building an environment archive, once for each content."""

from __future__ import annotations

import errno
import gzip
import os
import tarfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from distkeras_grid import fsync
from distkeras_grid.engine.registry import configured_backend
from distkeras_grid.errors import NoSpaceError, StorageError
from distkeras_grid.progress import Bytes, Reporter, Say
from distkeras_grid.submission.environment import (
    PYTHON,
    Interpreter,
    Member,
    archive_name,
    package_members,
    stdlib_members,
)
from distkeras_grid.submission.installed_packages import InstalledPackages, needed_distributions
from distkeras_grid.submission.interpreter import private_libraries, relocatable, this_interpreter

# All files get this date, the oldest that a wheel may have: the same content gives the same bytes.
DATE = 315532800
# Level 1 takes a quarter of the time of level 6, and the archive is 4% larger.
COMPRESSION = 1
PIECE = 1 << 20
#: Mode of a file that no other user may change, whatever the umask is.
OWN = 0o644


@dataclass(frozen=True)
class Environment:
    """An environment that can be packed."""

    interpreter: Interpreter
    distributions: tuple[InstalledPackages, ...]

    @property
    def name(self) -> str:
        """File name of its archive."""
        return archive_name(self.interpreter, self.distributions)

    def archive(self) -> Path:
        """Return the path of its archive on this machine, which need not exist yet."""
        return cache_folder() / self.name


def this_environment(extra_packages: Sequence[str] = ()) -> Environment:
    """Describe the part of this environment that a job needs; see `needed_distributions`."""
    needed = needed_distributions(extra_packages, backend=configured_backend())
    return Environment(this_interpreter(), tuple(needed))


def cache_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Return where archives are kept.

    Examples
    --------
    >>> cache_folder({"XDG_CACHE_HOME": "/scratch"})
    PosixPath('/scratch/distkeras_grid/environments')
    """
    cache = environment.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "distkeras_grid" / "environments"


def make_private(folder: Path) -> None:
    """Make a folder in which no other user may replace a file: it runs in this user's name."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    # One that exists may be open to others; that of another user is an error.
    folder.chmod(0o700)


def is_packed(archive: Path) -> bool:
    """Whether an archive of this user is there; others may have put one into an open folder."""
    return archive.exists() and archive.stat().st_uid == os.getuid()


def build(environment: Environment, target: Path, say: Say) -> None:
    """Pack an environment. The archive appears complete or not at all."""
    count = len(environment.distributions)
    say(f"looking up the files of Python {environment.interpreter.version} and {count} packages")
    try:
        # In one step, because another submission may be packing the same archive.
        with fsync.atomic_file(target) as partial:
            members = collect(environment, partial.parent)
            total = sum(member.source.stat().st_size for member in members)
            say(f"packing {len(members):,} files, {total / 1e6:.0f} MB, into {target}")
            with (
                partial.open("wb") as opened,
                Reporter(Bytes("packing", total), to=say, at_once=False) as progress,
            ):
                pack(members, opened, lambda count: progress.add(done=count))
            partial.chmod(OWN)
    except OSError as error:
        kind = NoSpaceError if error.errno in (errno.ENOSPC, errno.EDQUOT) else StorageError
        raise kind(
            f"The environment cannot be packed into {target}: {error}. Free some space there, or "
            "set XDG_CACHE_HOME to another folder."
        ) from error
    say(f"packed {len(members):,} files into {target.stat().st_size / 1e6:.0f} MB")


def collect(environment: Environment, scratch: Path) -> list[Member]:
    """Return the files of an archive, sorted."""
    interpreter = environment.interpreter
    members = stdlib_members(interpreter)
    extensions = [member.source for member in members if member.source.suffix == ".so"]
    members += private_libraries(interpreter, [interpreter.executable, *extensions])
    members.append(Member(PYTHON, relocatable(interpreter.executable, scratch)))
    for each in environment.distributions:
        members += package_members(interpreter.site_packages, each)
    # Distributions of one namespace may share a file.
    return sorted({member.name: member for member in members}.values())


def pack(members: Iterable[Member], target: BinaryIO, advance: Callable[[int], object]) -> None:
    """Write members as a compressed tar. The same members and contents give the same bytes.

    `advance`: receives the size of each file.
    """
    with (
        gzip.GzipFile("", "wb", COMPRESSION, target, mtime=DATE) as compressed,
        tarfile.TarFile(
            fileobj=compressed, mode="w", format=tarfile.GNU_FORMAT, copybufsize=PIECE
        ) as archive,
    ):
        for member in members:
            with member.source.open("rb") as source:
                status = os.fstat(source.fileno())
                entry = tarfile.TarInfo(member.name)
                entry.size, entry.mtime = status.st_size, DATE
                entry.mode = 0o755 if status.st_mode & 0o100 else 0o644
                archive.addfile(entry, source)
                advance(entry.size)
