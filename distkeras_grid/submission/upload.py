"""Uploads an environment archive to where the nodes find it, once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from distkeras_grid.errors import OutputExistsError, StorageError
from distkeras_grid.progress import Bytes, Reporter
from distkeras_grid.spark.storage import Storage
from distkeras_grid.submission.archive import Environment, build, is_packed, make_private

# Below the user's home directory.
FOLDER = ".distkeras_grid/environments"


def archive_place(environment: Environment, home: str) -> str:
    """Return the path by which nodes find an archive.

    `home`: the user's home directory on the cluster's file system. If that is this machine's, Spark
    itself sends the archive.
    """
    if home.startswith("file:"):
        return str(environment.archive())
    return f"{home}/{FOLDER}/{environment.name}"


def place(
    environment: Environment, uri: str, storage: Storage, say: Callable[[str], object]
) -> None:
    """Pack an environment and upload it, unless that has been done before.

    An archive is never overwritten, because YARN keeps unpacked copies by name and date.
    """
    local = environment.archive()
    try:
        make_private(local.parent)
    except OSError as error:
        raise StorageError(
            f"{local.parent} cannot be a folder of yours alone: {error}. Set XDG_CACHE_HOME to a "
            "folder that is yours."
        ) from error
    if uri != str(local) and storage.exists(uri):
        say(f"the environment has been uploaded before: {uri}")
        return
    if not is_packed(local):
        build(environment, local, say)
    if uri != str(local):
        _upload(local, uri, storage, say)


def _upload(local: Path, uri: str, storage: Storage, say: Callable[[str], object]) -> None:
    size = local.stat().st_size
    say(f"uploading {size / 1e6:.0f} MB to {uri}")
    folder = uri.rpartition("/")[0]
    if not storage.exists(folder):
        # All users may read it, so a node unpacks it once for all of them.
        storage.make_public_dirs(folder)
    try:
        with Reporter(Bytes("uploading", size), to=say, at_once=False) as progress:
            storage.upload(local, uri, lambda count: progress.add(done=count))
    except OutputExistsError:
        say("another submission was first to upload it")
