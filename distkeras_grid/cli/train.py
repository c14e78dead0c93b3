"""``distkeras-grid train``: a model file or a function, a data set, a trainer, an output."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any, Literal

from distkeras_grid.cli import preflight
from distkeras_grid.cli.console import print_result, report
from distkeras_grid.cli.exit_codes import main_of
from distkeras_grid.cli.model_functions import load_function
from distkeras_grid.cli.parser import Parser, add_master_flag, add_selection_flags, verb_parser
from distkeras_grid.cli.predict import rows_where
from distkeras_grid.cli.spinner import spinner, start_spark
from distkeras_grid.cli.trainer_options import (
    add_trainer_options,
    parse_settings,
    trainer_arguments,
)
from distkeras_grid.errors import ConfigurationError, GridError
from distkeras_grid.local_sets.sets import LocalSets
from distkeras_grid.model_parallel import MODEL_TRAINERS
from distkeras_grid.trainers import TRAINERS
from distkeras_grid.trainers.arguments import BALANCED
from distkeras_grid.trainers.config import TrainerConfig

if TYPE_CHECKING:
    import keras
    from pyspark.sql import DataFrame, SparkSession

    from distkeras_grid.feeding.schema import Field
    from distkeras_grid.spark.storage import Storage
    from distkeras_grid.trainers.base import Trainer

# What --local-sets takes.
LOCAL_SETTINGS = (
    *("iterations", "local_train", "local_test", "test_images", "split"),
    "test_split",
)

DESCRIPTION = """\
Train a Keras model on Spark workers and write model.keras, history.jsonl and run.json to --output.
The files appear together at the end. If they cannot be written, they are kept in a local folder,
and the error names it.
"""
EPILOG = """\
examples:
  distkeras-grid train --data tiles --split train --model model.keras \\
      --features image --epochs 5 --batch-size 16 --workers 4 --output runs/first
  distkeras-grid submit train --data hdfs:///tiles --split train \\
      --validation-split validation --model hdfs:///model.keras --features image \\
      --trainer DOWNPOUR --class-weight balanced --set worker_optimizer=adam --output hdfs:///runs/first
  distkeras-grid train --data tiles --split train --model model.keras --features image \\
      --epochs 50 --output runs/long --checkpoint-dir checkpoints/long --resume

--model is a .keras file on any Hadoop path, or module:function. The function returns a Keras model.
If it has parameters shape and classes, it is called with the shape of an image, such as
(128, 128, 3), and the number of classes, such as 5, as far as the data have them. With several
feature columns it is called without arguments.

With --local-sets the split of the training tiles is train, unless --split or split= says otherwise.

With --checkpoint-dir and --resume the same command goes on where a killed or interrupted one was.
Ctrl-C and SIGTERM write a last checkpoint, also with submit in client mode. In cluster mode YARN
kills the driver, so the last checkpoint is the one that --checkpoint-every has written.
"""


def build_parser() -> Parser:
    """Return the parser of the command line."""
    parser = verb_parser("train", DESCRIPTION, EPILOG)
    add = parser.add_argument
    add("--data", required=True, metavar="URI", help="Parquet data set to train on")
    add("--model", required=True, help="FILE.keras on any Hadoop path, or module:function")
    add("--output", required=True, metavar="URI", help="folder to write, new or empty")
    add(
        "--trainer",
        default="AveragingTrainer",
        choices=(*TRAINERS, *MODEL_TRAINERS),
        help="algorithm (AveragingTrainer)",
    )
    add_selection_flags(parser, "train on this split of a tile data set (default: all rows)")
    add(
        "--where",
        metavar="CONDITION",
        help="train only on rows that meet this condition in SQL, such as 'bg_fraction < 0.5'",
    )
    validation = parser.add_mutually_exclusive_group().add_argument
    validation(
        "--validation-split",
        metavar="SPLIT",
        help="split of --data to evaluate after each epoch (none)",
    )
    validation(
        "--validation-data",
        metavar="URI",
        help="another data set to evaluate after each epoch (none)",
    )
    add("--sample-weight", metavar="COLUMN", help="column of sample weights (none)")
    add(
        "--class-weight",
        type=class_weight,
        metavar="balanced|NUMBER=WEIGHT[,...]",
        help="weights of the rows of each class; balanced gives all classes the same weight in "
        "total (1 for each)",
    )
    add(
        "--local-sets",
        metavar="NAME=VALUE[,...]",
        help="each worker draws its own training and test sets and reads them by itself, such as "
        "iterations=18,local_train=6000,local_test=2700; also test_images, split and test_split, "
        "as LocalSets has them",
    )
    add(
        "--mirror",
        action="append",
        default=[],
        metavar="URI",
        dest="mirrors",
        help="copy of the data set that workers read their local sets from; may be repeated",
    )
    add(
        "--seed",
        type=int,
        metavar="N",
        help="seed of shuffling and of random layers (a new one for each run)",
    )
    add("--keep-order", action="store_true", help="do not shuffle the rows")
    add(
        "--overwrite",
        action="store_true",
        help="replace the run in --output when this one has ended; nothing else is replaced",
    )
    add_master_flag(parser)
    add_trainer_options(parser)
    return parser


def class_weight(text: str) -> dict[int, float] | Literal["balanced"]:
    """Return weights by the numbers of classes, or ``balanced``.

    Examples
    --------
    >>> class_weight("0=2,3=0.5"), class_weight("balanced")
    ({0: 2.0, 3: 0.5}, 'balanced')
    """
    if text == BALANCED:
        return BALANCED
    weights: dict[int, float] = {}
    for item in text.split(","):
        number, _, weight = item.partition("=")
        try:
            weights[int(number)] = float(weight)
        except ValueError as error:
            raise argparse.ArgumentTypeError(
                f"{text!r} is neither {BALANCED} nor NUMBER=WEIGHT with commas between"
            ) from error
    return weights


def local_sets(data: Any, flags: argparse.Namespace) -> LocalSets:
    """Return the local sets that the flags ask for."""
    settings = [part.strip() for part in flags.local_sets.split(",") if part.strip()]
    try:
        arguments = parse_settings(settings)
    except ConfigurationError as error:
        raise ConfigurationError(str(error).replace("--set", "--local-sets", 1)) from error
    missing = [name for name in ("iterations", "local_train") if name not in arguments]
    if missing or not set(arguments) <= set(LOCAL_SETTINGS):
        raise ConfigurationError(
            "--local-sets needs iterations and local_train, and takes "
            f"{', '.join(LOCAL_SETTINGS)}. Received: {flags.local_sets!r}."
        )
    if flags.split is not None and arguments.setdefault("split", flags.split) != flags.split:
        raise ConfigurationError(
            f"The training tiles are of one split. Received: --split {flags.split} and "
            f"--local-sets split={arguments['split']}."
        )
    return LocalSets(data, **arguments, mirrors=flags.mirrors)


def check_local_sets(flags: argparse.Namespace) -> None:
    """Refuse flags that do not go with local sets, or without them."""
    if flags.local_sets is None:
        if flags.mirrors:
            raise ConfigurationError(
                f"Mirrors are for local sets. Received: --mirror {flags.mirrors[0]} without "
                "--local-sets."
            )
        return
    for name in ("fold", "epochs"):
        if getattr(flags, name) is not None:
            raise ConfigurationError(
                f"--{name} does not go with --local-sets. Received: {getattr(flags, name)!r}. "
                "Iterations count as epochs, and split and test_split divide the data."
            )
    local_sets("", flags)


def train(flags: argparse.Namespace) -> Trainer | None:
    """Train as the flags say, and write the run."""
    import distkeras_grid
    from distkeras_grid.spark.atomic_output import Output
    from distkeras_grid.spark.columns import resolve_features
    from distkeras_grid.spark.session import this_driver
    from distkeras_grid.spark.storage import Storage
    from distkeras_grid.trainers.saved_run import SAVED_RUN, is_of_former_attempt

    arguments = trainer_arguments(flags)
    check_early(flags)
    shown = arguments.get("progress") is not False
    timeout = TrainerConfig.parameters["start_timeout"]
    seconds = timeout.check(arguments.get(timeout.name, timeout.default))
    spark = start_spark("distkeras-grid train", flags.master, seconds=seconds, shown=shown)
    storage = Storage(spark)
    output = Output(storage, flags.output, SAVED_RUN, overwrite=flags.overwrite)
    output.finish_replacement()
    if is_of_former_attempt(storage, flags.output, this_driver(spark)):
        report(output=flags.output)
        print_result(
            f"{flags.output} is complete: an earlier attempt of this application has written it"
        )
        return None
    inputs = [path for path in (flags.data, flags.validation_data) if path is not None]
    output.check(*inputs)
    with spinner("looking at the data", shown=shown):
        data, validation = read_data(spark, flags)
        chosen = arguments.get("features_col", "features")
        (features,) = resolve_features(data, chosen) if isinstance(chosen, str) else (None,)
    with spinner("loading Keras and the model", shown=shown):
        model = load_model(flags.model, storage, features)
    trainer: Trainer = getattr(distkeras_grid, flags.trainer)(model, **arguments)
    trainer.train(
        data if flags.local_sets is None else local_sets(data, flags),
        shuffle=not flags.keep_order,
        validation_data=validation,
        class_weight=flags.class_weight,
        sample_weight_col=flags.sample_weight,
        seed=flags.seed,
    )
    save(trainer, flags)
    report(output=flags.output, samples=trainer.history.samples, updates=trainer.num_updates)
    print_result(summary(trainer, flags.output))
    return trainer


def check_early(flags: argparse.Namespace, place: preflight.SubmittedDriver | None = None) -> None:
    """Refuse what can be known before Spark starts."""
    from distkeras_grid.trainers.saved_run import SAVED_RUN

    arguments = trainer_arguments(flags)
    inputs = [path for path in (flags.data, flags.validation_data) if path is not None]
    preflight.check_output(flags.output, SAVED_RUN, *inputs, overwrite=flags.overwrite, place=place)
    preflight.check_input(flags.data, "--data", place)
    preflight.check_input(flags.validation_data, "--validation-data", place)
    if flags.fold is None and flags.data_version is None and flags.local_sets is None:
        preflight.check_splits(flags.data, (flags.split, flags.validation_split), place)
    check_local_sets(flags)
    preflight.check_fold(flags.split, flags.fold)
    # Last: where names of losses are given, Keras is asked, too, and a function may import it.
    preflight.check_trainer(flags.trainer, arguments, flags.master, place)
    preflight.check_model(flags.model, place)


def read_data(
    spark: SparkSession, flags: argparse.Namespace
) -> tuple[DataFrame, DataFrame | str | None]:
    """Return the rows to train on, and those, or their path, to evaluate each epoch on."""
    from distkeras_grid.spark.dataframes import read_parquet, read_tiles

    # Together, because finding the splits costs a job.
    # Local sets choose their rows among all.
    split = flags.split if flags.local_sets is None else None
    splits = tuple(name for name in (split, flags.validation_split) if name is not None)
    which = {"version": flags.data_version}
    read = read_tiles(flags.data, splits=splits, fold=flags.fold, **which) if splits else ()
    frames = dict(zip(splits, read, strict=True))
    data = read_parquet(spark, flags.data, **which) if split is None else frames[split]
    return rows_where(data, flags.where), frames.get(flags.validation_split, flags.validation_data)


def save(trainer: Trainer, flags: argparse.Namespace) -> None:
    """Save the run; if that fails, keep it on this machine and say where in the error."""
    from distkeras_grid.trainers.saved_run import keep_copy

    try:
        trainer.save(flags.output, overwrite=flags.overwrite)
    except BaseException as error:
        # Hours of work. An interrupt counts, too: it often ends the wait for a dead file system.
        try:
            folder = keep_copy(trainer.model, trainer.history, trainer.run)
            error.add_note(f"the run is kept on this machine in {folder}; copy it from there")
        except GridError as second:
            error.add_note(f"no copy of the run could be kept on this machine: {second}")
        raise


def load_model(source: str, storage: Storage, features: Field | None) -> keras.Model:
    """Return the model of a ``.keras`` file or of ``module:function``."""
    from distkeras_grid.engine.keras_model import model_from_bytes

    if source.endswith(".keras"):
        return model_from_bytes(storage.read_bytes(source))
    return call_model_function(source, load_function(source), features)


def call_model_function(source: str, function: Any, features: Field | None) -> keras.Model:
    """Call a model function with the data's shape and number of classes, if it takes them.

    `features`: the feature column; None of several.
    """
    import inspect

    offered: dict[str, Any] = {}
    known = "with several feature columns it is called without arguments"
    if features is not None:
        offered["shape"] = features.shape
        if features.classes:
            offered["classes"] = len(features.classes)
        known = f"column {features.name!r} has only {offered}"
    taken = inspect.signature(function).parameters
    required = [
        name
        for name, parameter in taken.items()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    if unknown := [name for name in required if name not in offered]:
        raise ConfigurationError(
            f"--model {source!r} needs {', '.join(unknown)}; {known}. Give the parameter a default."
        )
    return function(**{name: value for name, value in offered.items() if name in taken})


def summary(trainer: Trainer, output: str) -> str:
    """Return the last lines of the command."""
    figures = {name: values[-1] for name, values in trainer.history.history.items()}
    scores = ", ".join(f"{name} {value:.4f}" for name, value in figures.items())
    return (
        f"trained {trainer.history.samples} samples in {trainer.get_training_time():.1f} s "
        f"({trainer.num_updates} updates): {scores}\nwrote {output}"
    )


main = main_of(build_parser, train)
