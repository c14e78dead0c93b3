"""How a user finds an application of YARN again, and how a run goes on that has failed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING

from distkeras_grid.checkpoints import Driver
from distkeras_grid.cli.console import print_note
from distkeras_grid.errors import ClusterError, GridError
from distkeras_grid.submission.applications import state_line

if TYPE_CHECKING:
    from distkeras_grid.spark.storage import Storage
    from distkeras_grid.tickets import Keytab

FIND = "see what YARN has of it: distkeras-grid status"


def tell_at_end(tag: str, keytab: Keytab | None) -> None:
    """Write the id of the application with a tag after its driver has ended.

    Nothing is written if YARN does not have it: then the driver ended before it asked for one.
    """
    from distkeras_grid.submission.resource_manager import resource_manager

    try:
        with resource_manager(keytab) as manager:
            application = manager.tagged(tag)
    except GridError as error:
        # The job has ended. That YARN does not answer does not change its exit code.
        print_note(f"{FIND} ({error})")
        return
    if application:
        print_note(f"what its containers wrote: distkeras-grid logs {application.id}")


def waiting(tag: str, keytab: Keytab | None) -> Callable[[], bool]:
    """Return what writes the state of the application with a tag while it has no container.

    It returns whether that may go on.
    """
    from distkeras_grid.submission.resource_manager import resource_manager

    def look() -> bool:
        try:
            with resource_manager(keytab) as manager:
                application = manager.tagged(tag)
        except GridError:
            return False
        if application is None:
            return True
        if application.ended or application.state == "RUNNING":
            return False
        print_note(state_line(application, time.time() - application.started_ms / 1000))
        return True

    return look


def driver_line(identifier: str, keytab: Keytab | None) -> Callable[[], str]:
    """Return what tells the last line of an application's driver; empty where nobody tells it."""
    from distkeras_grid.submission.container_logs import RunningLogs, last_line
    from distkeras_grid.submission.resource_manager import resource_manager

    def ask() -> str:
        try:
            with resource_manager(keytab) as manager:
                return last_line(RunningLogs(manager, identifier, print_note, drivers=True))
        except GridError:
            return ""

    return ask


@contextmanager
def findable() -> Iterator[None]:
    """Add to an error of the cluster that leaves the block how to find the application."""
    try:
        yield
    except ClusterError as error:
        error.add_note(FIND)
        raise


def way_on(files: Storage, checkpoint_dir: str) -> str | None:
    """Return which checkpoint a run has left, and how it goes on from it."""
    from distkeras_grid.spark.checkpoints import CheckpointStore

    try:
        left = CheckpointStore(files, checkpoint_dir, Driver("")).newest_manifest()
    except GridError:
        # Why the run has failed says more.
        return None
    if left is None:
        return None
    when = datetime.fromtimestamp(left.saved_at).astimezone().isoformat(" ", "seconds")
    return (
        f"checkpoint {left.number} of {when}, epoch {left.epochs}, is in {checkpoint_dir}; "
        "the same command with --resume goes on from it"
    )
