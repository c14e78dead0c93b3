"""How a user finds an application of YARN again, and how a run goes on that has failed."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from distkeras_grid.checkpoints import Driver
from distkeras_grid.cli.console import print_note
from distkeras_grid.errors import ClusterError, GridError
from distkeras_grid.submission.applications import state_line

if TYPE_CHECKING:
    from distkeras_grid.spark.storage import Storage
    from distkeras_grid.submission.resource_manager import ResourceManager
    from distkeras_grid.tickets import Keytab


def tell_at_end(tag: str, keytab: Keytab | None) -> None:
    """Write the id of the application with a tag after its driver has ended; the tag if unknown.

    Nothing is written if YARN does not have it: then the driver ended before it asked for one.
    """
    from distkeras_grid.submission.resource_manager import resource_manager

    try:
        with resource_manager(keytab) as manager:
            application = manager.tagged(tag)
    except GridError as error:
        # The job has ended. That YARN does not answer does not change its exit code.
        print_note(f"{by_tag(tag)} ({error})")
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
        print_note(state_line(application, time.time() - application.started))
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


def add_name(error: BaseException, tag: str, manager: ResourceManager) -> None:
    """Add a note to an error: how to find the application with a tag, if YARN has it."""
    try:
        application = manager.tagged(tag)
    except ClusterError:
        error.add_note(by_tag(tag))
        return
    if application is not None:
        error.add_note(
            f"YARN has it as {application.id}; ask: distkeras-grid status {application.id}; stop "
            f"it: distkeras-grid cancel {application.id}"
        )


@contextmanager
def tag_on_error(tag: str) -> Iterator[None]:
    """Add the application's tag to an error of the cluster that leaves the block."""
    try:
        yield
    except ClusterError as error:
        error.add_note(by_tag(tag))
        raise


def by_tag(tag: str) -> str:
    """Return how to find an application whose id is unknown."""
    return f"the application's tag is {tag}; look for it: yarn application -list -appTags {tag}"


def way_on(files: Storage, checkpoint_dir: str) -> str | None:
    """Return which checkpoint a run has left, and the command that goes on from it."""
    from distkeras_grid.spark.checkpoints import CheckpointStore

    try:
        left = CheckpointStore(files, checkpoint_dir, Driver("")).newest_manifest()
    except GridError:
        # Why the run has failed says more.
        return None
    if left is None:
        return None
    when = datetime.fromtimestamp(left.saved_at).astimezone().isoformat(" ", "seconds")
    place = f"checkpoint {left.number} of {when}, epoch {left.epochs}, is in {checkpoint_dir}"
    name, *words = sys.argv
    if Path(name).name != "distkeras-grid":
        # Of what has started this process, the command is not known here.
        return f"{place}; the same command with --resume goes on from it"
    resume = [] if "--resume" in words else ["--resume"]
    return f"{place}; this goes on from it: {shlex.join(['distkeras-grid', *words, *resume])}"
