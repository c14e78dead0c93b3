"""``distkeras-grid train``: a model file or a function, a data set, a trainer, an output."""

from __future__ import annotations

import argparse
import ast
import importlib
import math
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distkeras_grid.cli import early
from distkeras_grid.cli.columns import columns
from distkeras_grid.cli.console import report, tell
from distkeras_grid.cli.exit_codes import exit_codes_help, guarded
from distkeras_grid.errors import ConfigurationError, GridError, NoSpaceError
from distkeras_grid.trainers import TRAINERS

if TYPE_CHECKING:
    import keras
    from pyspark.sql import DataFrame, SparkSession

    from distkeras_grid.feeding.schema import Field
    from distkeras_grid.spark.storage import Storage
    from distkeras_grid.trainers.base import Trainer

    # From the feature column, which is None where the flags name several, to a model.
    ModelBuilder = Callable[[Storage, Field | None], keras.Model]

# Arguments of the trainer that have a flag of their own.
FLAGS = {
    "features_col": "features",
    "label_col": "label",
    "num_workers": "workers",
    "batch_size": "batch_size",
    "num_epoch": "epochs",
}

# Numbers that are saved for one weight: itself, and two of an optimizer such as Adam.
SAVED_PER_WEIGHT = 3

DESCRIPTION = """\
Train a Keras model on Spark workers and write model.keras, history.jsonl and run.json. They appear
together at the end; if they cannot be written there, they are kept in a local folder that the
error names.
"""
EPILOG = """\
examples:
  distkeras-grid train --data tiles --split train --model model.keras --trainer ADAG \\
      --features image --epochs 5 --batch-size 16 --workers 4 --output runs/first
  spark-submit --master yarn jobs/train.py --data hdfs:///tiles --split train \\
      --validation-split validation --model my_models:texture_net --features image \\
      --trainer AveragingTrainer --set worker_optimizer=adam --output hdfs:///runs/first

A model is a .keras file (any Hadoop path), or module:function that returns a Keras model; the
function is called with shape, such as (128, 128, 3), and classes, such as 5, if it takes them and
the data tell them; with several feature columns it is called with nothing.
"""


def build_parser(*, names_model: bool = True) -> argparse.ArgumentParser:
    """Return the parser of the command line; of a job that builds its own model without --model."""
    parser = argparse.ArgumentParser(
        prog="distkeras-grid train",
        description=DESCRIPTION,
        epilog=EPILOG + "\n" + exit_codes_help(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--data", required=True, metavar="URI", help="Parquet data set to train on")
    if names_model:
        add("--model", required=True, help="FILE.keras on any Hadoop path, or module:function")
    add("--output", required=True, metavar="URI", help="folder to write, new or empty")
    add("--trainer", default="ADAG", choices=TRAINERS, help="algorithm (default: ADAG)")
    add("--split", help="train on this split of a tile data set (default: all rows)")
    add(
        "--where",
        metavar="CONDITION",
        help="train on rows for which this is true, in Spark's SQL, such as 'bg_fraction < 0.5'",
    )
    validation = parser.add_mutually_exclusive_group().add_argument
    validation(
        "--validation-split", metavar="SPLIT", help="split of --data evaluated at each epoch's end"
    )
    validation(
        "--validation-data", metavar="URI", help="another data set evaluated at each epoch's end"
    )
    add(
        "--features",
        type=columns,
        metavar="COLUMN[,...]",
        help="feature column, or one for each input of the model, in its order (features)",
    )
    add(
        "--label",
        type=columns,
        metavar="COLUMN[,...]",
        help="label column, or one for each output of the model, in its order (label)",
    )
    add("--sample-weight", metavar="COLUMN", help="column of sample weights")
    add("--workers", type=int, help="workers (all task slots; SingleTrainer: 1)")
    add("--batch-size", type=int, help="rows in a batch of one worker (32)")
    add("--epochs", type=int, help="passes over the data (1)")
    add("--seed", type=int, help="seed of mixing and random layers (default: fresh)")
    add("--keep-order", action="store_true", help="train in the order of the data, unmixed")
    add(
        "--overwrite",
        action="store_true",
        help="replace a run that is in --output, at the end; nothing else is replaced",
    )
    add("--master", help="Spark master of a session started here (default: local[*,4])")
    add(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        dest="settings",
        help="any other argument of the trainer, the value as in Python; may be repeated",
    )
    return parser


def parse_settings(settings: Sequence[str]) -> dict[str, Any]:
    """Turn ``name=value`` into arguments; values are Python literals, else text.

    Examples
    --------
    >>> parse_settings(["communication_window=8", "loss=mse", "learning_rate=1e-3"])
    {'communication_window': 8, 'loss': 'mse', 'learning_rate': 0.001}
    """
    arguments: dict[str, Any] = {}
    for setting in settings:
        name, separator, text = setting.partition("=")
        if not separator or not name.isidentifier():
            raise ConfigurationError(f"--set takes name=value. Received: {setting!r}.")
        try:
            arguments[name] = ast.literal_eval(text)
        except (ValueError, SyntaxError):
            arguments[name] = text
    return arguments


def trainer_arguments(flags: argparse.Namespace) -> dict[str, Any]:
    """Return the trainer's arguments, from flags and ``--set``; what nobody gave is left out.

    Raises
    ------
    ConfigurationError
        If one is given in both ways.
    """
    arguments = parse_settings(flags.settings)
    for name, flag in FLAGS.items():
        value = getattr(flags, flag)
        if value is None:
            continue
        if name in arguments:
            raise ConfigurationError(
                f"--{flag.replace('_', '-')} and --set {name}=... mean the same. Give one of them."
            )
        arguments[name] = value
    return arguments


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    flags = build_parser().parse_args(argv)
    return guarded(lambda: train(flags))


def train(flags: argparse.Namespace, build: ModelBuilder | None = None) -> Trainer:
    """Train as the flags say, and write the run.

    Parameters
    ----------
    flags : argparse.Namespace
        What `build_parser` parses.
    build : callable, optional
        Builds the model for the feature column, where the flags name none.
    """
    import distkeras_grid
    from distkeras_grid.spark.dataframes import resolve_features
    from distkeras_grid.spark.outputs import Output
    from distkeras_grid.spark.session import build_session
    from distkeras_grid.spark.storage import Storage
    from distkeras_grid.trainers.saved_run import SAVED_RUN

    arguments = trainer_arguments(flags)
    check_before_spark(flags, arguments)
    spark = build_session("distkeras-grid train", master=flags.master)
    storage = Storage(spark)
    inputs = [path for path in (flags.data, flags.validation_data) if path is not None]
    Output(storage, flags.output, SAVED_RUN, overwrite=flags.overwrite).check(*inputs)
    data, validation = read_data(spark, flags)
    chosen = arguments.get("features_col", "features")
    (features,) = resolve_features(data, chosen) if isinstance(chosen, str) else (None,)
    model = (build or partial(load_model, flags.model))(storage, features)
    trainer: Trainer = getattr(distkeras_grid, flags.trainer)(model, **arguments)
    check_space(storage, flags.output, model)
    trainer.train(
        data,
        shuffle=not flags.keep_order,
        validation_data=validation,
        sample_weight_col=flags.sample_weight,
        seed=flags.seed,
    )
    save(trainer, flags)
    report(output=flags.output, samples=trainer.history.samples, updates=trainer.num_updates)
    tell(summary(trainer, flags.output))
    return trainer


def check_before_spark(flags: argparse.Namespace, arguments: Mapping[str, Any]) -> None:
    """Refuse what can be known before Spark starts.

    Parameters
    ----------
    flags : argparse.Namespace
        What `build_parser` parses.
    arguments : mapping of str to object
        Arguments of the trainer.

    Raises
    ------
    ConfigurationError, PathNotFoundError, OutputExistsError
        The first thing that is wrong.
    """
    from distkeras_grid.trainers.saved_run import SAVED_RUN

    early.check_model(getattr(flags, "model", None))
    inputs = [path for path in (flags.data, flags.validation_data) if path is not None]
    early.check_output(flags.output, SAVED_RUN, *inputs, overwrite=flags.overwrite)
    early.check_input(flags.data, "--data")
    early.check_input(flags.validation_data, "--validation-data")
    # Last: where names of losses are given, Keras is asked, too.
    early.check_trainer(flags.trainer, arguments)


def read_data(
    spark: SparkSession, flags: argparse.Namespace
) -> tuple[DataFrame, DataFrame | str | None]:
    """Return the rows to train on, and those, or their path, to evaluate each epoch on.

    Raises
    ------
    PathNotFoundError
        If there are no data.
    SchemaError
        If a split is not there.
    ConfigurationError
        If ``--where`` is no condition on the columns.
    """
    from pyspark.errors import PySparkException

    from distkeras_grid.spark.dataframes import read_parquet, read_tiles

    # Together, for a look at the splits costs a job.
    splits = tuple(name for name in (flags.split, flags.validation_split) if name is not None)
    frames = dict(zip(splits, read_tiles(flags.data, splits=splits) if splits else (), strict=True))
    data = read_parquet(spark, flags.data) if flags.split is None else frames[flags.split]
    if flags.where is not None:
        try:
            data = data.where(flags.where)
        except PySparkException as error:
            told = str(error).splitlines()[0]
            raise ConfigurationError(
                f"--where {flags.where!r} is no condition on the columns "
                f"{', '.join(data.columns)}: {told}"
            ) from error
    return data, frames.get(flags.validation_split, flags.validation_data)


def check_space(storage: Storage, output: str, model: keras.Model) -> None:
    """Refuse to train a model that could not be saved.

    Parameters
    ----------
    storage : Storage
        Storage of the session.
    output : str
        Where it will be saved.
    model : keras.Model
        The model.

    Raises
    ------
    NoSpaceError
        If the output, or this machine's directory of temporary files, in which Keras packs the
        model, has less space than the largest file the model may need.
    """
    weights = sum(math.prod(variable.shape) for variable in model.variables)
    needed = SAVED_PER_WEIGHT * 4 * weights
    local = tempfile.gettempdir()
    places = {
        f"--output {output}": storage.free_space(output),
        f"the directory of temporary files {local} (TMPDIR)": shutil.disk_usage(local).free,
    }
    for place, free in places.items():
        if free < needed:
            raise NoSpaceError(
                f"the trained model needs up to {needed / 1e6:.3g} MB, and {place} has "
                f"{free / 1e6:.3g} MB free; free some space there, or choose another"
            )


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
    """Return the model of a ``.keras`` file or of ``module:function``.

    Raises
    ------
    ConfigurationError
        If the text is neither, or the function cannot be found or called.
    """
    from distkeras_grid.engine.keras_model import model_from_bytes

    if source.endswith(".keras"):
        return model_from_bytes(storage.read_bytes(source))
    module, separator, name = source.partition(":")
    if not separator:
        raise ConfigurationError(
            f"--model takes FILE.keras or module:function. Received: {source!r}."
        )
    # Modules beside the user's job are found as `python script.py` finds them.
    sys.path.insert(0, str(Path.cwd()))
    try:
        function = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(f"--model {source!r} cannot be found: {error}.") from error
    return call_model_function(source, function, features)


def call_model_function(source: str, function: Any, features: Field | None) -> keras.Model:
    """Call a model function with the data's shape and number of classes, if it takes them.

    Parameters
    ----------
    source : str
        What ``--model`` said.
    function : callable
        What it names.
    features : Field, optional
        The feature column; None of several.

    Raises
    ------
    ConfigurationError
        If it takes what is not known of the data.
    """
    import inspect

    offered: dict[str, Any] = {}
    known = "nothing is told of several feature columns"
    if features is not None:
        offered["shape"] = features.shape
        if features.classes:
            offered["classes"] = len(features.classes)
        known = f"known of column {features.name!r} are {offered}"
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
    told = ", ".join(f"{name} {value:.4f}" for name, value in figures.items())
    return (
        f"trained {trainer.history.samples} samples in {trainer.get_training_time():.1f} s "
        f"({trainer.num_updates} updates): {told}\nwrote {output}"
    )
