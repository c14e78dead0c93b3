"""What an environment archive holds, and its name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path, PurePosixPath

import pytest

from distkeras_grid.errors import EnvironmentMismatchError
from distkeras_grid.submission import environment
from distkeras_grid.submission.environment import (
    PRUNED_PACKAGES,
    PRUNED_STDLIB,
    Interpreter,
    archive_name,
    is_included,
    package_members,
    stdlib_members,
)
from distkeras_grid.submission.installed_packages import InstalledPackages

SITE = PurePosixPath("lib/python3.11/site-packages")


def interpreter(prefix: Path = Path("/opt/python")) -> Interpreter:
    library = prefix / "lib" / "python3.11"
    return Interpreter(
        "3.11.7", "linux glibc 2.36", prefix / "bin" / "python3.11", prefix, library, library, SITE
    )


def package(folder: Path, *files: str, version: str = "1.0") -> InstalledPackages:
    for file in files:
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text(file)
    return InstalledPackages("Some_Package", version, folder, tuple(map(PurePosixPath, files)))


def test_the_name_changes_with_whatever_changes_the_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    one, other = package(tmp_path), replace(package(tmp_path), name="other")
    name = archive_name(interpreter(), [one, other])
    assert name.startswith("environment-3.11.7-")
    assert name.endswith(".tar.gz")
    assert archive_name(interpreter(), [other, one]) == name
    assert archive_name(interpreter(Path("/elsewhere")), [one, other]) == name
    changed = {
        archive_name(interpreter(), [one]),
        archive_name(interpreter(), [one, replace(other, version="2")]),
        archive_name(interpreter(), [one, replace(other, record="changed")]),
        archive_name(replace(interpreter(), version="3.11.8"), [one, other]),
        archive_name(replace(interpreter(), platform="linux glibc 2.31"), [one, other]),
    }
    monkeypatch.setattr(environment, "PRUNED_NAMES", ("tests", "more"))
    changed.add(archive_name(interpreter(), [one, other]))
    assert len(changed) == 6
    assert name not in changed


@pytest.mark.parametrize(
    ("path", "kept"),
    [
        ("tensorflow/__init__.py", True),
        ("tensorflow/_api/v2/test/__init__.py", True),
        ("tensorflow/include/eigen/a", False),
        ("tensorflow/python/include/a.py", True),
        ("numpy/_core/include/numpy/arrayobject.h", False),
        ("numpy/tests/test_a.py", False),
        ("numpy/testing/__init__.py", True),
        ("numpy/__init__.pyi", False),
        ("numpy/__pycache__/a.cpython-311.pyc", False),
        ("numpy.libs/libopenblas.so", True),
        ("keras-3.15.1.dist-info/METADATA", True),
    ],
)
def test_what_of_a_package_is_kept(path: str, kept: bool):
    assert is_included(PurePosixPath(path), PRUNED_PACKAGES) is kept


def test_the_standard_library_without_what_no_job_needs(tmp_path: Path):
    library = tmp_path / "lib" / "python3.11"
    kept = ("os.py", "lib-dynload/_ssl.so", "importlib/metadata/__init__.py", "unittest/mock.py")
    pruned = (
        *("test/test_os.py", "site-packages/numpy/__init__.py", "__pycache__/os.pyc"),
        *("idlelib/idle.py", "config-3.11-x86_64-linux-gnu/Makefile", "tkinter/__init__.py"),
    )
    package(library, *kept, *pruned)
    members = stdlib_members(interpreter(tmp_path))
    assert {member.name for member in members} == {f"lib/python3.11/{name}" for name in kept}
    assert all(member.source.read_text() in member.name for member in members)
    assert is_included(PurePosixPath("test_of_mine.py"), PRUNED_STDLIB)


def test_a_package_goes_to_site_packages_and_must_be_whole(tmp_path: Path):
    each = package(tmp_path, "a/__init__.py", "a/b.h")
    (member,) = package_members(SITE, each)
    assert member.name == "lib/python3.11/site-packages/a/__init__.py"
    assert member.source == tmp_path / "a" / "__init__.py"
    member.source.unlink()
    with pytest.raises(EnvironmentMismatchError, match=r"Some_Package 1\.0 .*__init"):
        package_members(SITE, each)
