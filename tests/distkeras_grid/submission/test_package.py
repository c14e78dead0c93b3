"""The project as a zip file."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from distkeras_grid.errors import StorageError
from distkeras_grid.submission.package import package_zip, write_package


def test_the_project_runs_from_its_zip_file_alone(tmp_path: Path):
    path = write_package("0.1.0", tmp_path)
    program = (
        "import distkeras_grid.errors, importlib.util as u; "
        "print(distkeras_grid.errors.__file__, u.find_spec('data_prep').origin)"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", program],
        cwd=tmp_path,
        env={"PYTHONPATH": str(path)},
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert all(file.startswith(str(path)) for file in done.stdout.split())
    names = zipfile.ZipFile(path).namelist()
    assert "distkeras_grid/py.typed" in names
    assert names == [str(path) for path in sorted(map(Path, names))]
    assert not any("__pycache__" in name or "/samples/" in name for name in names)


def test_the_name_tells_the_content(tmp_path: Path):
    first = write_package("0.1.0", tmp_path)
    stamp = first.stat().st_mtime_ns
    assert write_package("0.1.0", tmp_path) == first
    assert first.stat().st_mtime_ns == stamp
    assert list(tmp_path.iterdir()) == [first]


def test_another_file_of_that_name_is_not_believed(tmp_path: Path):
    path = write_package("0.1.0", tmp_path)
    content = path.read_bytes()
    path.write_bytes(b"planted")
    assert write_package("0.1.0", tmp_path).read_bytes() == content


def test_nobody_else_can_replace_it(tmp_path: Path):
    (tmp_path / "packages").mkdir(mode=0o777)
    path = write_package("0.1.0", tmp_path / "packages")
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert path.stat().st_mode & 0o777 == 0o644


def test_the_same_sources_give_the_same_bytes(tmp_path: Path):
    source = tmp_path / "one"
    source.mkdir()
    (source / "a.py").write_text("1")
    before = package_zip({"one": source})
    (source / "a.py").touch()
    (source / "a.pyc").write_text("")
    assert package_zip({"one": source}) == before
    (source / "a.py").write_text("2")
    assert package_zip({"one": source}) != before


def test_a_folder_that_cannot_be_written(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="Set XDG_CACHE_HOME"):
        write_package("0.1.0", tmp_path / "file" / "packages")
