"""Checks of files, names and numbers of workers before Spark starts.

A verb looks at files of this machine only. `submit`, which has started Hadoop's client, gives the
`SubmittedDriver`, so that a mistake is refused before anything is packed. The same checks are
repeated at the start of the session.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, TypeVar, cast

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
from distkeras_grid.spark.storage import Storage

if TYPE_CHECKING:
    from distkeras_grid.submission.command import Submission

GLOB = "*?[{"
#: With one of them, Hadoop or Spark may name another file system for paths without a scheme.
CONFIGURATIONS = ("HADOOP_CONF_DIR", "YARN_CONF_DIR", "SPARK_CONF_DIR")
#: What to give beside a fold, for a command that reads one split.
VALIDATION_HINT = "--split validation for what it holds out"

Answer = TypeVar("Answer")


class LocalFiles:
    """Files of this machine."""

    def exists(self, uri: str) -> bool:
        """Tell whether there is a file or a directory."""
        return local_path(uri).exists()

    def resolve(self, uri: str) -> str:
        """Return the full path; one of another file system as it is."""
        scheme, separator, _ = uri.partition(":")
        if separator and scheme != "file" and "/" not in scheme:
            return uri
        return f"file:{local_path(uri).absolute()}"

    def list_names(self, uri: str) -> list[str]:
        """Return the names in a directory; of a file, its own."""
        path = local_path(uri)
        if not path.exists():
            raise PathNotFoundError(f"Cannot list {uri}: it does not exist. Check the path.")
        # As Hadoop does, without its files of checksums.
        names = os.listdir(path) if path.is_dir() else [path.name]
        return sorted(name for name in names if not name.endswith(".crc"))

    def read_bytes(self, uri: str) -> bytes:
        """Return the content of a file."""
        return local_path(uri).read_bytes()


#: What the checks can ask.
Files: TypeAlias = Storage | LocalFiles


def local_path(uri: str) -> Path:
    """Return the path of a ``file:`` URI, or of a plain path.

    Examples
    --------
    >>> str(local_path("file:///runs/7")), str(local_path("file:/runs")), str(local_path("runs"))
    ('/runs/7', '/runs', 'runs')
    """
    path = uri.removeprefix("file:")
    return Path(path.removeprefix("//") if path.startswith("///") else path)


class ThisProcess:
    """The driver is this process."""

    #: Whether a worker without a slot may wait for one, if its trainer can do without it.
    waits: ClassVar[bool] = False

    def files_of(self, uri: str) -> Files | None:
        """Return where to look for a path, None where only Spark's own JVM can tell."""
        if "PYSPARK_GATEWAY_PORT" in os.environ:
            # What was submitted: an earlier attempt of it may have written the output.
            return None
        scheme, separator, _ = uri.partition(":")
        if separator and "/" not in scheme:
            return LocalFiles() if scheme == "file" else None
        return None if any(map(os.environ.get, CONFIGURATIONS)) else LocalFiles()

    def slots(self, master: str | None) -> int | None:
        """Return the slots of a local master, whose number never changes.

        Those of a cluster are not known here, and only Spark's JVM knows a submission's master.
        """
        from distkeras_grid.spark.session import local_cores, planned_master

        planned = planned_master(master)
        return None if planned is None else local_cores(planned)

    def check_function(self, source: str) -> None:
        """Import it, as the training will."""
        load_function(source)


@dataclass(frozen=True)
class SubmittedDriver:
    """The driver of a submission: in client mode a process here, otherwise in a container."""

    #: Trainers without rounds begin, and a worker takes the slot of one that has finished.
    waits: ClassVar[bool] = True

    submission: Submission  # What is submitted
    files: Files  # Those of Hadoop's client, which has the submission's settings

    def files_of(self, uri: str) -> Files | None:
        """Return where to look for a path; None for files of a container's host."""
        local = self.files.resolve(uri).startswith("file:")
        return None if local and self.submission.in_cluster else self.files

    def slots(self, _: str | None) -> int | None:
        """Return the task slots of the executors; the job's own ``--master`` is not used."""
        return self.submission.slots

    def check_function(self, source: str) -> None:
        """Leave it to the driver, which imports it before Spark starts."""


#: Where a verb's driver runs, as far as these checks must know.
DriverEnvironment: TypeAlias = ThisProcess | SubmittedDriver

HERE = ThisProcess()


def check_splits(data: str, splits: Iterable[str | None], place: DriverEnvironment = HERE) -> None:
    """Refuse a split that a data set of tiles does not have, as far as that can be told."""
    asked = tuple(filter(None, splits))
    if not asked or any(sign in data for sign in GLOB):
        return
    present = present_at(data, place)
    if present is not None and (split_of := decode_manifest(present[1], data).splits()):
        check_present(asked, set(split_of.values()), data)


def present_at(data: str, place: DriverEnvironment = HERE) -> tuple[int, bytes] | None:
    """Return number and manifest of a data set's version, None where they cannot be told."""
    root = data.rstrip("/")

    def ask(files: Files) -> tuple[int, bytes] | None:
        return present_manifest(root, files.list_names, files.exists, files.read_bytes)

    return _asked(root, place, ask)


def check_fold(split: str | None, fold: str | None, give: str = VALIDATION_HINT) -> None:
    """Refuse a fold without a split."""
    if fold is not None and split is None:
        raise ConfigurationError(
            f"A fold divides the data into splits. Received: --fold {fold} without --split. Give "
            f"{give}."
        )


def check_input(uri: str | None, flag: str, place: DriverEnvironment = HERE) -> None:
    """Refuse a path that is not there, as far as that can be told."""
    if uri is None or any(sign in uri for sign in GLOB):
        return
    if _asked(uri, place, lambda files: files.exists(uri)) is False:
        raise PathNotFoundError(f"{flag} {uri!r} does not exist. Check scheme, host and path.")


def check_output(
    uri: str, kind: OutputKind, *inputs: str, overwrite: bool, place: DriverEnvironment = HERE
) -> None:
    """Refuse a folder that would not be replaced, as far as that can be told."""

    def look(files: Files) -> None:
        # Of the storage only what `Files` has is used.
        Output(cast(Storage, files), uri, kind, overwrite=overwrite).check_existing(*inputs)

    _asked(uri, place, look)


def check_output_file(uri: str | None, *, overwrite: bool, place: DriverEnvironment = HERE) -> None:
    """Refuse a file that is there and would be replaced unasked."""
    if uri is None or overwrite:
        return
    if _asked(uri, place, lambda files: files.exists(uri)):
        raise OutputExistsError(f"--output {uri!r} exists; choose another, or add --overwrite.")


def _asked(uri: str, place: DriverEnvironment, ask: Callable[[Files], Answer]) -> Answer | None:
    """Return an answer, None where there is none; a refusal of ours passes."""
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
    master: str | None = None,
    place: DriverEnvironment = HERE,
) -> None:
    """Refuse what the trainer's constructor refuses, without its model, and too many workers."""
    import distkeras_grid
    from distkeras_grid.rules import SynchronousRule

    trainer = getattr(distkeras_grid, name)(_AnyModel(), **arguments)
    # No number means as many as there are slots; then any number is enough.
    rule = trainer.build_rule(trainer.workers_asked or 1, "")
    together = trainer.devices > 1 or isinstance(rule, SynchronousRule)
    if together or not place.waits:
        check_slots(master, (trainer.workers_asked or 1) * trainer.devices, place)


def check_slots(master: str | None, tasks: int, place: DriverEnvironment = HERE) -> None:
    """Refuse more tasks at once than there are slots, if their number cannot grow."""
    from distkeras_grid.spark import doctor

    slots = place.slots(master)
    if slots is not None:
        doctor.raise_or_collect([doctor.check_slots(slots, tasks)])


def check_model(source: str, place: DriverEnvironment = HERE) -> None:
    """Refuse a model file that is not there, and a function that its module does not have."""
    if source.endswith(".keras"):
        check_input(source, "--model", place)
        return
    place.check_function(source)
