"""Putting an environment archive where the nodes find it, once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from distkeras_grid.errors import OutputExistsError
from distkeras_grid.progress import Bytes, Reporter
from distkeras_grid.spark.storage import Storage
from distkeras_grid.submission.archive import Environment, build

# Below the user's home directory.
FOLDER = ".distkeras_grid/environments"


def archive_place(environment: Environment, folder: str | None, home: str | None) -> str:
    """Return the path by which nodes find an archive.

    Parameters
    ----------
    environment : Environment
        What is packed in it.
    folder : str, optional
        Folder that the user has named.
    home : str, optional
        The user's home directory on the cluster's file system. Without one, Spark itself sends the
        archive from this machine.
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

    Parameters
    ----------
    environment : Environment
        What is packed.
    uri : str
        What `archive_place` returned.
    storage : Storage
        Storage of the cluster.
    say : callable
        Receives lines of progress.
    """
    local = environment.archive()
    if storage.exists(uri):
        say(f"the environment has been uploaded before: {uri}")
        return
    if not local.exists():
        build(environment, local, say)
    if uri != str(local):
        _upload(local, uri, storage, say)


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
        say("another submission was first to upload it")
