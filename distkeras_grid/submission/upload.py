"""Uploads an environment archive to where the nodes find it, once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from distkeras_grid.errors import OutputExistsError, StorageError
from distkeras_grid.progress import Bytes, Reporter
from distkeras_grid.spark.storage import Storage
from distkeras_grid.submission.archive import Environment, build, is_packed

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
    if not is_packed(local):
        build(environment, local, say)
    if uri != str(local):
        _upload(local, uri, storage, say)


def check(uri: str, storage: Storage) -> None:
    """Refuse an archive that others may change: its content runs with the rights of the user.

    `uri`: without a scheme a file of this machine, as for Spark.
    """
    if not urlsplit(uri).scheme:
        uri = f"file:{Path(uri).absolute()}"
    above = uri.rpartition("/")[0] + "/"
    archive, folder = storage.access(uri), storage.access(above)
    for path, status, is_folder in ((uri, archive, False), (above, folder, True)):
        # In a folder with the sticky bit, users cannot replace files of others.
        if status.mode & 0o022 and not (is_folder and status.mode & 0o1000):
            raise StorageError(
                f"Group or others may write to {path}, and so change what runs in your name. "
                f"Received: mode {status.mode:o}. Take that right away, delete {uri}, and submit "
                "again."
            )
    if archive.owner not in (storage.user(), folder.owner):
        raise StorageError(
            f"The environment {uri} belongs to {archive.owner!r}, neither to you nor to the owner "
            "of its folder. Name another folder (--environments), or delete it and submit again."
        )


def _upload(local: Path, uri: str, storage: Storage, say: Callable[[str], object]) -> None:
    size = local.stat().st_size
    say(f"uploading {size / 1e6:.0f} MB to {uri}")
    folder = uri.rpartition("/")[0]
    if not storage.exists(folder):
        # All users may read it, so a node unpacks it once for all of them.
        storage.make_public_dirs(folder, levels=2 if folder.endswith(FOLDER) else 1)
    try:
        with Reporter(Bytes("uploading", size), to=say, at_once=False) as progress:
            storage.upload(local, uri, lambda count: progress.add(done=count))
    except OutputExistsError:
        check(uri, storage)
        say("another submission was first to upload it")
