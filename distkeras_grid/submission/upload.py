"""Uploads an environment archive to where the nodes find it, once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from distkeras_grid.errors import OutputExistsError, StorageError
from distkeras_grid.progress import Bytes, Reporter
from distkeras_grid.spark.storage import Storage
from distkeras_grid.submission.archive import (
    DIGEST,
    Environment,
    build,
    digest_beside,
    is_as_packed,
)

# Below the user's home directory.
FOLDER = ".distkeras_grid/environments"


def archive_place(environment: Environment, folder: str | None, home: str | None) -> str:
    """Return the path by which nodes find an archive.

    `home`: the user's home directory on the cluster's file system. Without one, Spark itself sends
    the archive from this machine.
    """
    if folder is not None:
        return f"{folder.rstrip('/')}/{environment.name}"
    if home is not None:
        return f"{home}/{FOLDER}/{environment.name}"
    return str(environment.archive())


def place(
    environment: Environment, uri: str, storage: Storage, say: Callable[[str], object]
) -> None:
    """Pack an environment and upload it, unless that has been done before.

    An archive is never overwritten, because YARN keeps unpacked copies by name and date.
    """
    local = environment.archive()
    if storage.exists(uri):
        check(uri, storage)
        say(f"the environment has been uploaded before: {uri}")
        return
    if not is_as_packed(local):
        build(environment, local, say)
    if uri != str(local):
        _upload(local, uri, storage, say)


def check(uri: str, storage: Storage) -> None:
    """Refuse an archive that is not as it was packed, or that others may change.

    Its content runs with the rights of whoever submits.
    """
    advice = f"Delete it (distkeras-grid rm {uri}), and submit again."
    _check_rights(uri, storage, advice)
    beside = uri + DIGEST
    noted = storage.read_text(beside) if storage.exists(beside) else ""
    # As sha256sum writes it: digest and name.
    digest = next(iter(noted.split()), "nothing")
    if (present := storage.sha256(uri)) != digest:
        raise StorageError(
            f"The environment {uri} is not as it was packed. Received: SHA-256 {present}, "
            f"where {beside} says {digest}. {advice}"
        )


def check_own(uri: str, storage: Storage) -> None:
    """Refuse an archive that the user names if others may change it, or it is not as noted.

    Whoever has packed it need not have noted a SHA-256: without one, its content is not compared.

    `uri`: without a scheme a file of this machine, as for Spark.
    """
    if not urlsplit(uri).scheme:
        uri = f"file:{Path(uri).absolute()}"
    if storage.exists(uri + DIGEST):
        check(uri, storage)
    else:
        _check_rights(uri, storage, "Put a copy where only you may write, and name that.")


def _check_rights(uri: str, storage: Storage, advice: str) -> None:
    above = uri.rpartition("/")[0] + "/"
    archive, folder = storage.access(uri), storage.access(above)
    for path, status, is_folder in ((uri, archive, False), (above, folder, True)):
        # In a folder with the sticky bit, users cannot replace files of others.
        if status.mode & 0o022 and not (is_folder and status.mode & 0o1000):
            raise StorageError(
                f"Group or others may write to {path}, and so change what runs in your name. "
                f"Received: mode {status.mode:o}. Take that right away, and look who used it. "
                f"{advice}"
            )
    if archive.owner not in (storage.user(), folder.owner):
        raise StorageError(
            f"The environment {uri} belongs to {archive.owner!r}, neither to you nor to the owner "
            f"of its folder. Name another folder (--environments). {advice}"
        )


def _upload(local: Path, uri: str, storage: Storage, say: Callable[[str], object]) -> None:
    size = local.stat().st_size
    say(f"uploading {size / 1e6:.0f} MB to {uri}")
    folder = uri.rpartition("/")[0]
    if not storage.exists(folder):
        # All users may read it, so a node unpacks it once for all of them.
        storage.make_public_dirs(folder, levels=2 if folder.endswith(FOLDER) else 1)
    # Upload the digest first: then every archive has one. A broken-off upload leaves one behind.
    digest = digest_beside(local).read_text(encoding="ascii")
    storage.write_text(uri + DIGEST, digest, overwrite=True)
    try:
        with Reporter(Bytes("uploading", size), to=say, at_once=False) as progress:
            storage.upload(local, uri, lambda count: progress.add(done=count))
    except OutputExistsError:
        # Its archive runs in the name of this user, so it must be the same.
        check(uri, storage)
        say("another submission was first to upload it")
