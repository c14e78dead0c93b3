"""Versions of a data set: where their manifests lie, and which one a reader gets.

The manifest of version N is the file ``_versions/N.json``. It is never changed, and the highest
number is the present version. `data_prep.dataset.history` says how long one is kept.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection

from distkeras_grid.dataset.manifest import Manifest, Version
from distkeras_grid.errors import (
    ConfigurationError,
    PathNotFoundError,
    SchemaError,
)

FOLDER = "_versions"
# Until layout 2, the manifest of the present version.
FORMER_MANIFEST = "_dataset.json"
LEAST_DIGITS = 12
_MANIFEST = re.compile(r"(0|[1-9]\d{0,17})\.json")
# A folder that a run writes, and that is read once a manifest lists it.
_RUN_SHARD = re.compile(r"shard=\d{1,18}-.+")


def file_of(number: int) -> str:
    """Return where the manifest of a version lies, below the data set."""
    return f"{FOLDER}/{number}.json"


def numbers_in(names: Collection[str]) -> list[int]:
    """Return the numbers of the versions whose manifests have these names, in order.

    Examples
    --------
    >>> numbers_in(["10.json", "9.json", "_11.json.4d.tmp", "08.json"])
    [9, 10]
    """
    return sorted(int(match.group(1)) for name in names if (match := _MANIFEST.fullmatch(name)))


def present_number(
    root: str, list_names: Callable[[str], list[str]], exists: Callable[[str], bool]
) -> int | None:
    """Return the number of the present version; None where there is no version.

    `list_names`: returns the names in a folder, and raises a `PathNotFoundError` if it is missing.
    """
    # First the path that the user has given, so that an error names it.
    if not exists(root):
        return None
    if exists(f"{root}/{FORMER_MANIFEST}"):
        raise SchemaError(
            f"{root} is a data set of an earlier layout: it holds {FORMER_MANIFEST}. Convert it by "
            f"distkeras-grid versions --data {root} --convert, which writes no tile again."
        )
    numbers = numbers_in(_names_in(list_names, f"{root}/{FOLDER}"))
    return numbers[-1] if numbers else None


def present_manifest(
    root: str,
    list_names: Callable[[str], list[str]],
    exists: Callable[[str], bool],
    read: Callable[[str], bytes],
) -> tuple[int, bytes] | None:
    """Return number and manifest of the present version; None where there is no version.

    `read`: returns the content of a file.
    """
    number = present_number(root, list_names, exists)
    # A manifest that is replaced between these lines is kept, unless --keep-versions says 1.
    return None if number is None else (number, read(f"{root}/{file_of(number)}"))


def _names_in(list_names: Callable[[str], list[str]], folder: str) -> list[str]:
    try:
        return list_names(folder)
    except PathNotFoundError:
        return []


def refuse_incomplete(root: str, names: Collection[str]) -> None:
    """Refuse a folder in which a run writes tiles, or was killed, and of which no version has any.

    Read as a folder of Parquet files, it would show them.
    """
    if any(map(_RUN_SHARD.fullmatch, names)):
        raise PathNotFoundError(
            f"The data set of tiles in {root!r} is not complete. Wait until the command that "
            "writes it has ended. If that was killed, run it again."
        )


def parse_version(wanted: int | str) -> int | str:
    """Return a number, or the beginning of a hash.

    Examples
    --------
    >>> parse_version("41"), parse_version(41), parse_version("3f9a0c11d2e4")
    (41, 41, '3f9a0c11d2e4')
    """
    text = str(wanted)
    if re.fullmatch(rf"\d{{1,{LEAST_DIGITS - 1}}}", text):
        return int(text)
    if re.fullmatch(rf"[0-9a-f]{{{LEAST_DIGITS},64}}", text):
        return text
    raise ConfigurationError(
        f"A version is a number from 0, or at least the first {LEAST_DIGITS} digits of its hash. "
        f"Received: {wanted!r}."
    )


def choose(present: Manifest, wanted: int | str, path: str) -> Version | None:
    """Return the former version that is wanted, None for the present one."""
    name = parse_version(wanted)
    if name == present.last_update or (isinstance(name, str) and present.hash.startswith(name)):
        return None
    for version in reversed(present.history):
        if name == version.number or (isinstance(name, str) and version.hash.startswith(name)):
            return version
    numbers = [str(each.number) for each in present.history] + [
        f"{present.last_update} (the present)"
    ]
    raise SchemaError(
        f"{path!r} has no version {wanted}, or does not keep it any more. Its versions: "
        f"{', '.join(numbers)}. distkeras-grid versions lists them; tile --update --keep-versions "
        "says for how long they are kept."
    )
