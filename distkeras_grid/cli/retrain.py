"""``distkeras-grid retrain``: continues the last model of a folder of runs, on new images.

A run is named after the time of the version of the data that it sees, so each version has one run,
whoever trains it and however often. The newest run is the last by its name, and its ``run.json``
tells which version it has seen.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import msgspec

from distkeras_grid.checkpoints import numbers_of
from distkeras_grid.cli import preflight, train
from distkeras_grid.cli.console import print_result, report
from distkeras_grid.cli.exit_codes import exit_codes_help, main_of
from distkeras_grid.cli.spinner import spinner
from distkeras_grid.cli.trainer_options import trainer_arguments
from distkeras_grid.dataset.manifest import Manifest, decode_manifest
from distkeras_grid.errors import UNREADABLE, ConfigurationError, PathNotFoundError, SchemaError
from distkeras_grid.spark import dataframes

if TYPE_CHECKING:
    from distkeras_grid.spark.storage import Storage

RUN_NAME = re.compile(r"\d{4}-\d\d-\d\dT\d{6}Z")


class TrainedVersion(msgspec.Struct, frozen=True):
    """The version of the data set that a run was trained on."""

    number: int


class RunRecord(msgspec.Struct, frozen=True):
    """What is read of a run's ``run.json``."""

    data_version: TrainedVersion | None = None


DESCRIPTION = """\
Train as `distkeras-grid train` does, starting from the last model in the folder of runs --output.
The new run is added there, in a folder named after the time of the data's version, so the last name
is that of the newest run. The first run starts from --model. The data must be a data set
that `distkeras-grid tile` made. If no image is new since the last run, the command does nothing and
ends with exit code 0.
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
            # Refused with reasons of their own.
            "--overwrite": argparse.SUPPRESS,
            "--data-version": argparse.SUPPRESS,
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


def retrain(flags: argparse.Namespace) -> None:
    """Train on what is new, if anything is, and add the run."""
    from distkeras_grid.spark.session import build_session
    from distkeras_grid.spark.storage import Storage

    check_early(flags)
    with spinner("starting Spark"):
        spark = build_session("distkeras-grid retrain", master=flags.master)
    add_run(Storage(spark), flags)


def add_run(storage: Storage, flags: argparse.Namespace) -> None:
    """Train on what is new, if anything is, and add the run.

    Of two commands at once, the one that sees more images has the newest run, whichever ends first.
    """
    runs = flags.output.rstrip("/")
    former = runs_in(storage, runs)
    newest = former[-1] if former else None
    last = -1 if newest is None else trained_version(storage, runs, newest)
    # A night may commit while the training starts: it reads what is read here.
    manifest = read_manifest(storage, flags.data)
    arguments = trainer_arguments(flags)
    checkpoints = str(arguments.get("checkpoint_dir") or "").rstrip("/")
    if checkpoints:
        # Runs of other folders on the same data have the same names.
        checkpoints += f"/{sha256(storage.resolve(runs).encode()).hexdigest()[:12]}"
    if checkpoints and arguments.get("resume"):
        killed = killed_run(storage, checkpoints, manifest, newest)
        if killed is not None:
            manifest = read_manifest(storage, flags.data, killed)
            print_result(f"going on with the run {name_of(manifest.created)}")
    check_splits(manifest, flags)
    new = new_sources(manifest, flags.split, last)
    since = f"since {newest}" if newest else "in all"
    report(new_images=len(new), output=flags.output)
    print_result(
        f"{len(new):,} new images {since}" if new else f"no new images {since}; nothing to train"
    )
    if not new:
        if checkpoints and newest:
            # Its driver may have been killed when it was complete.
            storage.delete(f"{checkpoints}/{newest}")
        return
    name = next_name(manifest, newest)
    own = {"output": f"{runs}/{name}", "data_version": manifest.last_update}
    if checkpoints:
        own["checkpoint_dir"] = f"{checkpoints}/{name}"
    model = None if newest is None else model_of(runs, newest)
    trainer = train.train(train_flags(flags, model, new, own))
    if checkpoints:
        storage.delete(f"{checkpoints}/{name}")
    report(run=name, model=model_of(runs, name), update=manifest.last_update)
    if trainer is not None:
        report(samples=trainer.history.samples)
    for old in outdated(former, flags.keep):
        # Another command may have deleted it meanwhile.
        with suppress(PathNotFoundError):
            delete_run(storage, f"{runs}/{old}")


def name_of(created: str) -> str:
    """Return the name of the run that sees a version of the data.

    Examples
    --------
    >>> name_of("2026-11-21T01:52:07+00:00")
    '2026-11-21T015207Z'
    """
    name = created.replace(":", "").removesuffix("+0000") + "Z"
    if RUN_NAME.fullmatch(name) is None:
        raise SchemaError(f"A version of the data has no time. Received: created {created!r}.")
    return name


def next_name(manifest: Manifest, newest: str | None) -> str:
    """Return the name of a run, or refuse one that would not be the newest."""
    name = name_of(manifest.created)
    if newest is not None and name <= newest:
        raise SchemaError(
            "A run is named after the time of its version of the data. Received: a version of "
            f"{manifest.created}, beside the later run {newest}. A clock was wrong: rename the run."
        )
    return name


def runs_in(storage: Storage, folder: str) -> list[str]:
    """Return the names of the runs in a folder, oldest first; other names are none."""
    names = storage.list_names(folder) if storage.exists(folder) else []
    return sorted(filter(RUN_NAME.fullmatch, names))


def trained_version(storage: Storage, runs: str, name: str) -> int:
    """Return the number of the version that a run was trained on; -1 if it has recorded none."""
    from distkeras_grid.trainers.saved_run import RUN

    uri = f"{runs}/{name}/{RUN}"
    version = parse_record(storage.read_text(uri), uri).data_version
    return -1 if version is None else version.number


def parse_record(text: str, uri: str) -> RunRecord:
    """Read ``run.json``, and believe no more than is asked."""
    try:
        return msgspec.json.decode(text, type=RunRecord)
    except UNREADABLE as error:
        raise SchemaError(
            f"{uri} is not what a run writes there: {error}. Nothing was done. Look who wrote it."
        ) from error


def killed_run(
    storage: Storage, checkpoints: str, manifest: Manifest, newest: str | None
) -> int | None:
    """Return the version of the data that the newest killed run sees; None if none can go on.

    It is newer than the newest complete run, has a checkpoint, and its version is kept.
    """
    numbers = {name_of(each.created): each.number for each in manifest.history}
    numbers[name_of(manifest.created)] = manifest.last_update
    for name in reversed(runs_in(storage, checkpoints)):
        if name <= (newest or ""):
            break
        if name in numbers and numbers_of(storage.list_names(f"{checkpoints}/{name}")):
            return numbers[name]
    return None


def check_early(flags: argparse.Namespace, place: preflight.SubmittedDriver | None = None) -> None:
    """Refuse what can be known before Spark starts."""
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
    preflight.check_fold(flags.split, flags.fold)
    preflight.check_trainer(flags.trainer, trainer_arguments(flags), flags.master, place)
    preflight.check_input(flags.data, "--data", place)
    preflight.check_input(flags.validation_data, "--validation-data", place)
    if flags.fold is None:
        preflight.check_splits(flags.data, (flags.split, flags.validation_split), place)
    preflight.check_model(flags.model, place)


def read_manifest(storage: Storage, data: str, version: int | None = None) -> Manifest:
    """Return the manifest of a data set of tiles, or of a version that it keeps."""
    root = data.rstrip("/")
    if not storage.exists(root):
        raise PathNotFoundError(f"--data {data!r} does not exist. Check scheme, host and path.")
    content = dataframes.read_manifest(storage, root, version)
    if content is None or (manifest := decode_manifest(content, root)).last_update < 0:
        raise ConfigurationError(
            f"{data} does not tell what is new in it. Make it by `distkeras-grid tile`."
        )
    return manifest


def check_splits(manifest: Manifest, flags: argparse.Namespace) -> None:
    """Refuse a split that the data do not have: no image of it would ever be new."""
    if flags.fold is None and (split_of := manifest.splits()):
        asked = tuple(filter(None, (flags.split, flags.validation_split)))
        dataframes.check_present(asked, set(split_of.values()), flags.data)


def model_of(runs: str, name: str) -> str:
    """Return the path of a run's model."""
    return f"{runs}/{name}/model.keras"


def new_sources(manifest: Manifest, split: str | None, last: int) -> list[str]:
    """Return the digests of a split's images with rows that the newest run has not seen."""
    if last > manifest.last_update:
        last = -1  # The data set was made anew.
    return [
        each.sha256
        for each in manifest.sources
        # An image may keep no tile.
        if each.has_rows and each.tiles and each.sha256
        if (each.update or 0) > last and split in (None, each.split)
    ]


def train_flags(
    flags: argparse.Namespace, model: str | None, new: Sequence[str], own: Mapping[str, Any]
) -> argparse.Namespace:
    """Return the flags of the training: its own, the last model, and which rows."""
    arguments = {**vars(flags), **own}
    # Its own folder of checkpoints stands in place of the one of all runs.
    arguments["settings"] = [
        each for each in flags.settings if not each.startswith("checkpoint_dir=")
    ]
    if model is not None:
        arguments["model"] = model
        if flags.rows == "new":
            among = ", ".join(f"'{digest}'" for digest in new)
            arguments["where"] = f"source_sha256 in ({among})"
            if flags.where:
                arguments["where"] += f" and ({flags.where})"
    return argparse.Namespace(**arguments)


def outdated(former: Sequence[str], keep: int | None) -> list[str]:
    """Return which former runs go, now that there is a new one.

    `keep`: how many runs stay, the new one included; None for all.

    Examples
    --------
    >>> outdated(["2026-11-14T030000Z", "2026-11-21T030000Z"], keep=2)
    ['2026-11-14T030000Z']
    """
    return [] if keep is None else list(former[: max(0, len(former) - (keep - 1))])


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


main = main_of(build_parser, retrain)
