"""Checks before Spark starts; `submit` also looks for paths, before anything is packed.

A verb that runs here starts Spark in seconds and finds a wrong path then. So it checks only what
needs no file: flags, names, and the number of workers on a local master.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from distkeras_grid.cli.console import print_note
from distkeras_grid.cli.model_functions import load_function
from distkeras_grid.dataset.manifest import decode_manifest
from distkeras_grid.dataset.versions import present_manifest
from distkeras_grid.errors import (
    ConfigurationError,
    OutputExistsError,
    PathNotFoundError,
    StorageError,
)
from distkeras_grid.spark.atomic_output import Output, OutputKind
from distkeras_grid.spark.dataframes import check_present

if TYPE_CHECKING:
    from distkeras_grid.spark.storage import Storage
    from distkeras_grid.submission.command import Submission

GLOB = "*?[{"
Answer = TypeVar("Answer")


@dataclass(frozen=True)
class SubmittedDriver:
    """The driver of a submission: in client mode a process here, otherwise in a container."""

    submission: Submission  # What is submitted
    files: Storage  # Those of Hadoop's client, which has the submission's settings

    def files_of(self, uri: str) -> Storage | None:
        """Return where to look for a path; None for files of a container's host."""
        local = self.files.resolve(uri).startswith("file:")
        return None if local and self.submission.in_cluster else self.files


def check_splits(data: str, splits: Iterable[str | None], place: SubmittedDriver | None) -> None:
    """Refuse a split that a data set of tiles does not have, as far as that can be told."""
    asked = tuple(filter(None, splits))
    if not asked or any(sign in data for sign in GLOB):
        return
    present = present_at(data, place)
    if present is not None and (split_of := decode_manifest(present[1], data).splits()):
        check_present(asked, set(split_of.values()), data)


def present_at(data: str, place: SubmittedDriver | None) -> tuple[int, bytes] | None:
    """Return number and manifest of a data set's version, None where they cannot be told."""
    root = data.rstrip("/")

    def ask(files: Storage) -> tuple[int, bytes] | None:
        return present_manifest(root, files.list_names, files.exists, files.read_bytes)

    return _asked(root, place, ask)


def check_fold(split: str | None, fold: str | None) -> None:
    """Refuse a fold without a split."""
    if fold is not None and split is None:
        raise ConfigurationError(
            f"A fold divides the data into splits. Received: --fold {fold} without --split. To "
            "train, give --split train --validation-split validation, too; elsewhere --split "
            "validation for what it holds out."
        )


def check_input(uri: str | None, flag: str, place: SubmittedDriver | None) -> None:
    """Refuse a path that is not there, as far as that can be told."""
    if uri is None or any(sign in uri for sign in GLOB):
        return
    if _asked(uri, place, lambda files: files.exists(uri)) is False:
        raise PathNotFoundError(f"{flag} {uri!r} does not exist. Check scheme, host and path.")


def check_output(
    uri: str, kind: OutputKind, *inputs: str, overwrite: bool, place: SubmittedDriver | None
) -> None:
    """Refuse a folder that would not be replaced, as far as that can be told."""

    def look(files: Storage) -> None:
        Output(files, uri, kind, overwrite=overwrite).check_existing(*inputs)

    _asked(uri, place, look)


def check_output_file(uri: str | None, *, overwrite: bool, place: SubmittedDriver | None) -> None:
    """Refuse a file that is there and would be replaced unasked."""
    if uri is None or overwrite:
        return
    if _asked(uri, place, lambda files: files.exists(uri)):
        raise OutputExistsError(f"--output {uri!r} exists; choose another, or add --overwrite.")


def _asked(
    uri: str, place: SubmittedDriver | None, ask: Callable[[Storage], Answer]
) -> Answer | None:
    """Return an answer, None where there is none; a refusal of ours passes."""
    if place is None:
        return None
    try:
        files = place.files_of(uri)
        return None if files is None else ask(files)
    except OutputExistsError:
        raise
    except (OSError, StorageError) as error:
        # A jar that only the job has, a host that only the cluster reaches, no permission.
        reason = str(error).removesuffix(".")
        print_note(f"not checked before the start, but by the job itself: {uri} ({reason})")
        return None


class _AnyModel:
    """Stands for the model, which costs seconds to build, while the other arguments are checked."""

    get_config = fit = None


def check_trainer(
    name: str,
    arguments: Mapping[str, Any],
    master: str | None,
    place: SubmittedDriver | None,
) -> None:
    """Refuse what the trainer's constructor refuses, without its model, and too many workers."""
    import distkeras_grid
    from distkeras_grid.rules import SynchronousRule
    from distkeras_grid.spark import doctor

    trainer = getattr(distkeras_grid, name)(_AnyModel(), **arguments)
    # No number means as many as there are slots; then any number is enough.
    workers = trainer.requested_workers or 1
    rule = trainer.build_rule(workers, "")
    together = trainer.devices > 1 or isinstance(rule, SynchronousRule)
    # On a cluster, trainers without rounds begin, and a worker takes the slot of one that has
    # finished. A submission has a master of its own.
    if place is None or together:
        slots = local_slots(master) if place is None else place.submission.slots
        if slots is not None:
            doctor.raise_or_collect([doctor.check_slots(slots, workers * trainer.devices)])


def local_slots(master: str | None) -> int | None:
    """Return the slots of a local master, whose number never changes; None for another one.

    Those of a cluster are not known here, and only Spark's JVM knows a submission's master.
    """
    from distkeras_grid.spark.session import local_cores, planned_master

    planned = planned_master(master)
    return None if planned is None else local_cores(planned)


def check_model(source: str, place: SubmittedDriver | None) -> None:
    """Refuse a model file that is not there, and a function that its module does not have.

    A submitted driver imports the function itself, before Spark starts.
    """
    if source.endswith(".keras"):
        check_input(source, "--model", place)
    elif place is None:
        load_function(source)
