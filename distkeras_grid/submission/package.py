"""The project itself as one small zip file, from the folders that are installed here."""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from distkeras_grid import fsync
from distkeras_grid.errors import EnvironmentMismatchError, StorageError
from distkeras_grid.submission.archive import OWN, cache_folder, make_private

PACKAGES = ("distkeras_grid", "data_prep")
SUFFIXES = (".py", ".typed")


def package_folders() -> dict[str, Path]:
    """Return where the project's packages are installed."""
    folders = {}
    for name in PACKAGES:
        spec = find_spec(name)
        if spec is None or spec.origin is None:
            raise EnvironmentMismatchError(
                f"The package {name} is not installed here. Install it: pip install distkeras_grid."
            )
        folders[name] = Path(spec.origin).parent
    return folders


def package_zip(folders: Mapping[str, Path]) -> bytes:
    """Return packages as the content of a zip file. The same sources give the same bytes."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, folder in sorted(folders.items()):
            for path in sorted(folder.rglob("*")):
                if path.suffix in SUFFIXES and "__pycache__" not in path.parts:
                    # An entry's date is 1980 by default.
                    entry = zipfile.ZipInfo(f"{name}/{path.relative_to(folder)}")
                    entry.compress_type = zipfile.ZIP_DEFLATED
                    entry.external_attr = 0o644 << 16
                    archive.writestr(entry, path.read_bytes())
    return content.getvalue()


def write_package(version: str, folder: Path | None = None) -> Path:
    """Write the project's zip file, unless it exists, and return its path.

    Its name has a digest of its content.
    """
    content = package_zip(package_folders())
    folder = cache_folder().with_name("packages") if folder is None else folder
    target = folder / f"distkeras_grid-{version}-{hashlib.sha256(content).hexdigest()[:12]}.zip"
    try:
        make_private(folder)
        if not (target.exists() and target.read_bytes() == content):
            with fsync.atomic_file(target) as partial:
                partial.write_bytes(content)
                partial.chmod(OWN)
    except OSError as error:
        raise StorageError(
            f"The project cannot be packed into {target}: {error}. Set XDG_CACHE_HOME to a folder "
            "that can be written."
        ) from error
    return target
