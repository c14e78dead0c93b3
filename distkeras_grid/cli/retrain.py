"""``distkeras-grid retrain``: continues the last model of a folder of runs, on new images."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, TypeAlias, TypeVar

import msgspec

from distkeras_grid.checkpoints import Driver, numbers_of
from distkeras_grid.cli import preflight, train
from distkeras_grid.cli.console import print_result, report
from distkeras_grid.cli.exit_codes import exit_codes_help, run_command
from distkeras_grid.cli.spinner import spinner
from distkeras_grid.cli.trainer_options import trainer_arguments
from distkeras_grid.dataset.manifest import Manifest, decode_manifest
from distkeras_grid.errors import (
    UNREADABLE,
    BusyError,
    ConfigurationError,
    PathNotFoundError,
    SchemaError,
)
from distkeras_grid.spark import dataframes

if TYPE_CHECKING:
    from distkeras_grid.spark.storage import Storage

LATEST = "latest.json"
# The run that is being trained. Hidden, so it is none of the runs.
BEGUN = "_begun.json"
NAME_FORMAT = "%Y-%m-%dT%H%M%SZ"
RUN_NAME = re.compile(r"\d{4}-\d\d-\d\dT\d{6}Z")
# Names that `Storage.hidden_beside` gave to runs.
LEFTOVER = re.compile(r"_(\d{4}-\d\d-\d\dT\d{6}Z)\.[0-9a-f]{32}\.(?:tmp|old)")

# A command that began so long ago writes nothing any more.
SWEEP_AGE = timedelta(days=7)

T = TypeVar("T")
RunName: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"^\d{4}-\d\d-\d\dT\d{6}Z\Z")]


class Latest(msgspec.Struct, frozen=True):
    """What is believed of ``latest.json``: the newest run's name, and the update that it saw.

    The path of its model follows from the name.
    """

    run: RunName
    update: int


class Begun(msgspec.Struct, frozen=True):
    """The run that a driver has begun, for another attempt of its application."""

    run: RunName  # Name of the run
    update: int  # The last update of the data set that it sees
    driver: Driver


DESCRIPTION = """\
Train as `distkeras-grid train` does, starting from the last model in the folder of runs --output.
The new run is added there, in a folder named after the time; latest.json names the newest run and
its model. The first run starts from --model. The data must be a data set that `distkeras-grid tile`
made. If no image is new since the last run, the command does nothing and ends with exit code 0.
If YARN starts the driver again, it goes on with the run and the images of the first.
With --checkpoint-dir each run has a folder of its own there, which is deleted when the run is
complete; that of a killed run which nobody resumes stays. With --resume the command first goes on
with a run that was killed, on the data with which it began, if these are still kept.
"""
EPILOG = """\
examples:
  distkeras-grid retrain --data tiles --split train --validation-split validation \\
      --features image --model my_models:net --epochs 2 --output runs --keep 8
  distkeras-grid submit retrain --data hdfs:///tiles --split train \\
      --model my_models:net --features image --output hdfs:///runs --rows all

"""


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line: that of ``train``, with two more flags."""
    parser = train.build_parser()
    parser.prog = "distkeras-grid retrain"
    parser.description = DESCRIPTION
    parser.epilog = EPILOG + exit_codes_help()
    parser.replace_help(
        {
            "--model": "what the first run starts from: FILE.keras on any Hadoop path, or "
            "module:function",
            "--output": "folder of the runs, to which one is added",
            # Refused with a reason of its own.
            "--overwrite": argparse.SUPPRESS,
        }
    )
    add = parser.add_argument
    add(
        "--rows",
        choices=("new", "all"),
        default="new",
        help="train on the tiles that are new since the last run, or on all of --data (new)",
    )
    add("--keep", type=int, metavar="N", help="delete all but the newest N runs (keep all)")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    flags = build_parser().parse_args(argv)
    return run_command(lambda: retrain(flags))


def retrain(flags: argparse.Namespace) -> None:
    """Train on what is new, if anything is, and add the run."""
    from distkeras_grid.spark.session import build_session, this_driver
    from distkeras_grid.spark.storage import Storage

    check_early(flags)
    with spinner("starting Spark"):
        spark = build_session("distkeras-grid retrain", master=flags.master)
    storage = Storage(spark)
    _add_run(storage, flags, this_driver(spark))


def _add_run(storage: Storage, flags: argparse.Namespace, driver: Driver) -> None:
    """Train on what is new, if anything is, and add the run.

    Of several commands at once, the first that ends adds its run to the others. Another attempt of
    an application goes on with the run of the attempt before, under the same name and with the
    images that were new then. So does any driver that resumes, if the run has checkpoints and its
    version of the data is kept.
    """
    runs = flags.output.rstrip("/")
    names = storage.list_names(runs) if storage.exists(runs) else []
    pointer = _pointer(storage, runs)
    manifest = read_manifest(storage, flags.data)
    # A night may commit while the training starts: it reads what is read here.
    version: int | None = manifest.last_update
    arguments = trainer_arguments(flags)
    checkpoints = Checkpoints(storage, arguments.get("checkpoint_dir"))
    begun = read_begun(storage, runs, names)
    if begun is not None:
        can = (
            begun.run not in names and checkpoints.any(begun.run) and keeps(manifest, begun.update)
        )
        if not begun.driver.precedes(driver) and not (can and arguments.get("resume")):
            begun = None
    if begun is not None:
        if keeps(manifest, begun.update):
            version = begun.update
            manifest = read_manifest(storage, flags.data, version)
        manifest = until(manifest, begun.update)
        # It may be whole. Nevertheless it is not one of the former ones.
        names = [name for name in names if name != begun.run]
        print_result(f"going on with the run {begun.run}")
    latest = read_latest(storage, runs, names)
    new = new_sources(manifest, flags.split, latest)
    since = f"since {latest.run}" if latest else "in all"
    report(new_images=len(new), output=flags.output)
    if not new:
        print_result(f"no new images {since}; nothing to train")
        return
    print_result(f"{len(new):,} new images {since}")
    name = datetime.now(UTC).strftime(NAME_FORMAT) if begun is None else begun.run
    now = Begun(name, manifest.last_update, driver)
    storage.write_text(f"{runs}/{BEGUN}", msgspec.json.encode(now).decode() + "\n", overwrite=True)
    run_flags = train_flags(flags, f"{runs}/{name}", latest, new)
    run_flags = argparse.Namespace(**vars(run_flags) | {"data_version": version})
    trainer = train.train(checkpoints.flags(run_flags, name))
    _check_first(storage, runs, pointer, now)
    result = {"run": name, "model": model_of(runs, name), "update": manifest.last_update}
    storage.write_text(f"{runs}/{LATEST}", json.dumps(result) + "\n", overwrite=True)
    checkpoints.delete(name)
    _sweep(storage, runs, now)
    report(**result, **({} if trainer is None else {"samples": trainer.history.samples}))
    for old in outdated(names, flags.keep):
        delete_run(storage, f"{runs}/{old}")


class Checkpoints:
    """The folders of checkpoints, one for each run, below the one that the user gives.

    `folder`: the user's folder; None for no checkpoints.
    """

    def __init__(self, storage: Storage, folder: str | None) -> None:
        self._storage = storage
        self._folder = None if folder is None else str(folder).rstrip("/")

    def any(self, run: str) -> bool:
        """Whether a run has left a checkpoint."""
        uri = f"{self._folder}/{run}"
        if self._folder is None or not self._storage.exists(uri):
            return False
        return bool(numbers_of(self._storage.list_names(uri)))

    def delete(self, run: str) -> None:
        """Delete the checkpoints of a run, if there are any."""
        if self._folder is not None:
            self._storage.delete(f"{self._folder}/{run}")

    def flags(self, flags: argparse.Namespace, run: str) -> argparse.Namespace:
        """Return the flags of a training with the folder of its own."""
        if self._folder is None:
            return flags
        settings = [each for each in flags.settings if not each.startswith("checkpoint_dir=")]
        own = {"settings": settings, "checkpoint_dir": f"{self._folder}/{run}"}
        return argparse.Namespace(**vars(flags) | own)


def _pointer(storage: Storage, runs: str) -> str | None:
    """Return what ``latest.json`` holds; None before the first run."""
    try:
        return storage.read_text(f"{runs}/{LATEST}").strip()
    except PathNotFoundError:
        return None


def _check_first(storage: Storage, runs: str, pointer: str | None, now: Begun) -> None:
    """Refuse to add a run where another command has added one since this one began."""
    if (present := _pointer(storage, runs)) != pointer:
        # Another attempt of this application must not take it for unfinished.
        if read_begun(storage, runs, storage.list_names(runs)) == now:
            storage.delete(f"{runs}/{BEGUN}")
        raise BusyError(
            f"Another retrain has added a run to {runs} meanwhile: {LATEST} is {present}. The "
            f"model of this one is in {runs}/{now.run}, and no later run starts from it. Let only "
            "one command at a time work on the runs."
        )


def _sweep(storage: Storage, runs: str, now: Begun) -> None:
    """Delete the record of the run that has ended, and what commands killed long ago have left."""
    names = storage.list_names(runs)
    if read_begun(storage, runs, names) == now:
        storage.delete(f"{runs}/{BEGUN}")
    before = datetime.strptime(now.run, NAME_FORMAT) - SWEEP_AGE
    for name in names:
        if is_leftover(name, f"{before:{NAME_FORMAT}}"):
            storage.delete(f"{runs}/{name}")


def is_leftover(name: str, newest: str) -> bool:
    """Tell whether a killed command left this unfinished run, because it began before another one.

    Examples
    --------
    >>> name = "_2026-11-14T030000Z." + 32 * "0" + ".tmp"
    >>> is_leftover(name, "2026-11-21T030000Z"), is_leftover(name, "2026-11-07T030000Z")
    (True, False)
    """
    match = LEFTOVER.fullmatch(name)
    return match is not None and match[1] <= newest


def check_early(
    flags: argparse.Namespace, place: preflight.DriverEnvironment = preflight.HERE
) -> None:
    """Refuse what can be known before Spark starts."""
    check(flags)
    preflight.check_fold(flags.split, flags.fold, give=train.SPLITS_OF_FOLD)
    preflight.check_trainer(flags.trainer, trainer_arguments(flags), flags.master, place)
    preflight.check_input(flags.data, "--data", place)
    preflight.check_input(flags.validation_data, "--validation-data", place)
    if flags.fold is None:
        preflight.check_splits(flags.data, (flags.split, flags.validation_split), place)
    preflight.check_model(flags.model, place)


def check(flags: argparse.Namespace) -> None:
    """Refuse flags that do not go together."""
    if flags.overwrite:
        raise ConfigurationError(
            "--overwrite does not apply: retrain adds runs and replaces none. Leave it out."
        )
    if flags.data_version is not None:
        raise ConfigurationError(
            "--data-version does not apply: retrain reads the present version. Leave it out."
        )
    if flags.keep is not None and flags.keep < 1:
        raise ConfigurationError(f"--keep takes a number from 1. Received: {flags.keep}.")


def read_manifest(storage: Storage, data: str, version: int | None = None) -> Manifest:
    """Return the manifest of a data set of tiles, or of a version that it keeps."""
    root = data.rstrip("/")
    content = dataframes.read_manifest(storage, root, version)
    if content is None or (manifest := decode_manifest(content, root)).last_update < 0:
        raise ConfigurationError(
            f"{data} does not tell what is new in it. Make it by `distkeras-grid tile`."
        )
    return manifest


def keeps(manifest: Manifest, number: int) -> bool:
    """Whether a version can still be read."""
    return number in (manifest.last_update, *(each.number for each in manifest.history))


def parse(text: str, kind: type[T], uri: str) -> T:
    """Read a file of JSON that a run wrote, and believe no more than its kind says."""
    try:
        return msgspec.json.decode(text, type=kind)
    except UNREADABLE as error:
        raise SchemaError(
            f"{uri} is not what a run writes there: {error}. Nothing was done. Look who wrote it."
        ) from error


def read_latest(storage: Storage, runs: str, names: Sequence[str]) -> Latest | None:
    """Return the newest run and the last update that it saw, None before the first run."""
    if LATEST in names:
        return parse(storage.read_text(f"{runs}/{LATEST}"), Latest, f"{runs}/{LATEST}")
    dated = sorted(filter(RUN_NAME.fullmatch, names))
    # Killed before it could say what it saw: all is new to it.
    return Latest(dated[-1], -1) if dated else None


def read_begun(storage: Storage, runs: str, names: Sequence[str]) -> Begun | None:
    """Return the run that was begun last and has not been completed, if any."""
    if BEGUN not in names:
        return None
    try:
        return parse(storage.read_text(f"{runs}/{BEGUN}"), Begun, f"{runs}/{BEGUN}")
    except SchemaError:
        # No run wrote it. It will be replaced.
        return None


def until(manifest: Manifest, update: int) -> Manifest:
    """Return a data set's manifest without the images of later updates."""
    sources = tuple(each for each in manifest.sources if (each.update or 0) <= update)
    return msgspec.structs.replace(manifest, sources=sources, last_update=update)


def model_of(runs: str, name: str) -> str:
    """Return the path of a run's model."""
    return f"{runs}/{name}/model.keras"


def new_sources(manifest: Manifest, split: str | None, latest: Latest | None) -> list[str]:
    """Return the digests of a split's images with rows that the latest run has not seen."""
    since = latest.update if latest else -1
    if since > manifest.last_update:
        since = -1  # The data set was made anew.
    return [
        each.sha256
        for each in manifest.sources
        # An image may keep no tile.
        if each.has_rows and each.tiles and each.sha256
        if (each.update or 0) > since and split in (None, each.split)
    ]


def train_flags(
    flags: argparse.Namespace, output: str, latest: Latest | None, new: Sequence[str]
) -> argparse.Namespace:
    """Return the flags of the training: its folder, the last model, and which rows."""
    arguments = {**vars(flags), "output": output}
    if latest:
        arguments["model"] = model_of(output.rpartition("/")[0], latest.run)
        if flags.rows == "new":
            among = ", ".join(f"'{digest}'" for digest in new)
            arguments["where"] = f"source_sha256 in ({among})"
            if flags.where:
                arguments["where"] += f" and ({flags.where})"
    return argparse.Namespace(**arguments)


def outdated(former: Sequence[str], keep: int | None) -> list[str]:
    """Return which former runs go, now that there is a new one; other names never.

    `keep`: how many runs stay, the new one included; None for all.

    Examples
    --------
    >>> outdated(["2026-11-14T030000Z", "2026-11-21T030000Z", "thesis", "latest.json"], keep=2)
    ['2026-11-14T030000Z']
    """
    dated = sorted(filter(RUN_NAME.fullmatch, former))
    return [] if keep is None else dated[: max(0, len(dated) - (keep - 1))]


def delete_run(storage: Storage, uri: str) -> None:
    """Delete a run as a whole; one that holds something of the user's stays."""
    from distkeras_grid.trainers.saved_run import SAVED_RUN

    if foreign_files := SAVED_RUN.foreign_files(storage.list_names(uri)):
        print_result(f"kept {uri}: it holds {foreign_files[0]}, too")
        return
    aside = storage.hidden_beside(uri, "old")
    storage.rename(uri, aside)
    storage.delete(aside)
    print_result(f"deleted {uri}")
