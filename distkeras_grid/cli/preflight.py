"""Checks of files, names and numbers of workers before Spark starts.

Local files are checked directly, and files on HDFS with WebHDFS if it answers in time. Other paths
are not checked here. The same checks are repeated at the start of the session.

Each check takes the `DriverEnvironment` of the driver, `HERE` by default. `submit` gives the one of
the driver that it is about to start, so that a mistake is refused before anything is packed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as NoAnswer
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias, TypeVar, cast

from distkeras_grid.cli.console import print_note
from distkeras_grid.cli.model_functions import load_function
from distkeras_grid.dataset.manifest import decode_manifest
from distkeras_grid.dataset.versions import present_manifest
from distkeras_grid.errors import (
    ConfigurationError,
    GridError,
    OutputExistsError,
    PathNotFoundError,
)
from distkeras_grid.spark.atomic_output import Output, OutputKind
from distkeras_grid.spark.dataframes import check_present
from distkeras_grid.spark.storage import Storage

# A healthy NameNode answers in milliseconds, a process on a busy host takes seconds. If WebHDFS
# does not answer in this time, it is not asked again, and the checks follow in the session.
WEB_SECONDS = 10.0
GLOB = "*?[{"
# YARN's names of containers: perhaps an epoch, the cluster's start, the application, the attempt.
_CONTAINER = re.compile(r"container_(?:e\d+_)?\d+_\d+_(\d+)_\d+")

Answer = TypeVar("Answer")


class LocalFiles:
    """Files of this machine."""

    def exists(self, uri: str) -> bool:
        """Tell whether there is a file or a directory."""
        return local_path(uri).exists()

    def resolve(self, uri: str) -> str:
        """Return the whole path; one of another file system as it is."""
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

    def read(self, uri: str) -> bytes:
        """Return the content of a small file."""
        return local_path(uri).read_bytes()


class WebFiles:
    """Files on HDFS, by WebHDFS."""

    def exists(self, uri: str) -> bool:
        """Tell whether there is a file or a directory."""
        try:
            self.list_names(uri)
        except PathNotFoundError:
            return False
        return True

    def resolve(self, uri: str) -> str:
        """Return the path as it is."""
        return uri

    def list_names(self, uri: str) -> list[str]:
        """Return the names in a directory; of a file, its own."""
        from distkeras_grid.webhdfs.operations import list_directory

        return [each.path.rpartition("/")[2] for each in list_directory(uri)]

    def read(self, uri: str) -> bytes:
        """Return the content of a small file."""
        from distkeras_grid.webhdfs.operations import read_file

        return read_file(uri, seconds=WEB_SECONDS)


#: The files that can be asked without a JVM.
Files: TypeAlias = LocalFiles | WebFiles


def local_path(uri: str) -> Path:
    """Return the path of a ``file:`` URI, or of a plain path.

    Examples
    --------
    >>> str(local_path("file:///runs/7")), str(local_path("file:/runs")), str(local_path("runs"))
    ('/runs/7', '/runs', 'runs')
    """
    path = uri.removeprefix("file:")
    return Path(path.removeprefix("//") if path.startswith("///") else path)


def files_of(uri: str, *, set_anew: bool) -> Files | None:
    """Return where to look for a path, None where only Spark's own JVM can tell."""
    scheme, separator, rest = uri.partition(":")
    if not separator or "/" in scheme:
        return None if set_anew else configured_files()
    has_host = rest.startswith("//") and not rest.startswith("///")
    # A path without a host is on the default file system, too.
    if scheme != "file" and not has_host and (set_anew or _is_named_by_spark()):
        return None
    return _files_by_scheme(scheme)


def _is_named_by_spark() -> bool:
    """Whether Spark's configuration names a default file system, or cannot be read."""
    folder = os.environ.get("SPARK_CONF_DIR")
    if not folder:
        return False
    try:
        text = Path(folder, "spark-defaults.conf").read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return False
    except OSError:
        return True
    names = "|".join(map(re.escape, DEFAULT_FILES))
    return re.search(rf"^\s*({names})[\s=:]", text, re.MULTILINE) is not None


def configured_files() -> Files | None:
    """Return where paths without a scheme are, as Hadoop's configuration on this machine says.

    They belong to ``fs.defaultFS``. None where Spark's own settings may name another one.
    """
    if "SPARK_CONF_DIR" in os.environ:
        return None
    folder = os.environ.get("HADOOP_CONF_DIR")
    if not folder:
        # Spark's JVM reads that one, too, but WebHDFS's client does not.
        return None if os.environ.get("YARN_CONF_DIR") else LocalFiles()
    from distkeras_grid.webhdfs.sites import read_sites

    return _files_by_scheme(read_sites(folder).get("fs.defaultFS", "file:///").partition(":")[0])


def _files_by_scheme(scheme: str) -> Files | None:
    known: dict[str, Files] = {"file": LocalFiles(), "hdfs": WebFiles()}
    return known.get(scheme)


#: Settings of Spark that name the file system of paths without a scheme, or without a host.
DEFAULT_FILES = ("spark.hadoop.fs.defaultFS", "spark.hadoop.fs.default.name")
#: What to give beside a fold, for a command that reads one split.
VALIDATION_HINT = "--split validation for what it holds out"


class DriverEnvironment(Protocol):
    """Where a verb's driver runs, as far as these checks must know."""

    def files_of(self, uri: str) -> Files | None:
        """Return where to look for a path, None where this process cannot."""

    @property
    def waits(self) -> bool:
        """Whether a worker without a slot may wait for one, if its trainer can do without it."""

    def slots(self, master: str | None) -> int | None:
        """Return how many tasks can run at once, if their number cannot grow; None otherwise."""

    def check_function(self, source: str) -> None:
        """Refuse a function ``module:function`` that the driver will not find."""


class ThisProcess:
    """The driver is this process."""

    waits = False

    def files_of(self, uri: str) -> Files | None:
        """Return where to look for a path, None where only Spark's own JVM can tell."""
        return files_of(uri, set_anew="PYSPARK_GATEWAY_PORT" in os.environ)

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
        return present_manifest(root, files.list_names, files.exists, files.read)

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
    """Refuse a folder that would not be replaced, as far as that can be told.

    In a later attempt of an application nothing is refused here: an earlier one may have written
    the folder, which only the session can tell.
    """
    if in_later_attempt():
        return

    def look(files: Files) -> None:
        # Of the storage only what `Files` has is used.
        Output(cast(Storage, files), uri, kind, overwrite=overwrite).check_existing(*inputs)

    _asked(uri, place, look)


def in_later_attempt() -> bool:
    """Whether this process works for a driver that YARN has started again."""
    match = _CONTAINER.fullmatch(os.environ.get("CONTAINER_ID", ""))
    return match is not None and int(match[1]) > 1


def check_output_file(uri: str | None, *, overwrite: bool, place: DriverEnvironment = HERE) -> None:
    """Refuse a file that is there and would be replaced unasked."""
    if uri is None or overwrite:
        return
    if _asked(uri, place, lambda files: files.exists(uri)):
        raise OutputExistsError(f"--output {uri!r} exists; choose another, or add --overwrite.")


@dataclass
class _Web:
    """What this process knows of WebHDFS: whether it is silent, and the user has been told."""

    silent: bool = False
    is_reported: bool = False

    def left_out(self, uri: str, why: str) -> None:
        """Say once what is not checked here."""
        if not self.is_reported:
            reason = why.removesuffix(".")
            print_note(f"not checked before the start, but by the job itself: {uri} ({reason})")
        self.is_reported = True


_web = _Web()


def _asked(uri: str, place: DriverEnvironment, ask: Callable[[Files], Answer]) -> Answer | None:
    """Return an answer, None where there is none in time; a refusal of ours passes."""
    try:
        files = place.files_of(uri)
    except GridError as error:
        _web.left_out(uri, str(error))
        return None
    if isinstance(files, LocalFiles):
        try:
            return ask(files)
        except OSError:
            return None
    if files is None or _web.silent:
        return None
    # A thread, because looking up a host that does not exist may take minutes.
    pool = ThreadPoolExecutor(1)
    try:
        return pool.submit(ask, files).result(WEB_SECONDS)
    except OutputExistsError:
        raise
    except PathNotFoundError:
        return None
    except NoAnswer:
        _web.silent = True
        _web.left_out(uri, f"WebHDFS has not answered within {WEB_SECONDS:.0f} s")
        return None
    except GridError as error:
        _web.left_out(uri, str(error))
        return None
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


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
