"""``distkeras-grid train``: a model file or a function, a data set, a trainer, an output."""

from __future__ import annotations

import argparse
import ast
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distkeras_grid.cli.exit_codes import exit_codes_help, guarded
from distkeras_grid.errors import ConfigurationError, OutputExistsError

if TYPE_CHECKING:
    import keras

    from distkeras_grid.feeding.schema import Field
    from distkeras_grid.spark.storage import Storage
    from distkeras_grid.trainers.base import Trainer

TRAINERS = ("SingleTrainer", "DOWNPOUR", "AEASGD", "ADAG", "AveragingTrainer")

# Arguments of the trainer that have a flag of their own.
FLAGS = {
    "features_col": "features",
    "label_col": "label",
    "num_workers": "workers",
    "batch_size": "batch_size",
    "num_epoch": "epochs",
}

EPILOG = """\
examples:
  distkeras-grid train --data tiles --split train --model model.keras --trainer ADAG \\
      --features image --epochs 5 --batch-size 16 --set num_workers=4 --output runs/first
  spark-submit --master yarn jobs/train.py --data hdfs:///tiles --split train \\
      --validation-split test --model my_models:texture_net --trainer AveragingTrainer \\
      --features image --set worker_optimizer='"adam"' --output hdfs:///runs/first

A model is a .keras file (any Hadoop path), or module:function that returns a Keras model; the
function is called with shape=(h, w, c) and classes=N if it takes them.
"""


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="distkeras-grid train",
        description="Train a Keras model on Spark workers and write model, history and run.json.",
        epilog=EPILOG + "\n" + exit_codes_help(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--data", required=True, metavar="URI", help="Parquet data set to train on")
    add("--model", required=True, help="FILE.keras on any Hadoop path, or module:function")
    add("--output", required=True, metavar="URI", help="folder for model, history and run.json")
    add("--trainer", default="ADAG", choices=TRAINERS, help="algorithm (default: ADAG)")
    add("--split", help="train on this split of a tile data set (default: all rows)")
    add("--validation-split", metavar="SPLIT", help="split of --data evaluated at each epoch's end")
    add("--validation-data", metavar="URI", help="another data set evaluated at each epoch's end")
    add("--features", metavar="COLUMN", help="feature column (features)")
    add("--label", metavar="COLUMN", help="label column (label)")
    add("--sample-weight", metavar="COLUMN", help="column of sample weights")
    add("--workers", type=int, help="workers (default: all task slots)")
    add("--batch-size", type=int, help="rows in a batch of one worker (32)")
    add("--epochs", type=int, help="passes over the data (1)")
    add("--seed", type=int, help="seed of mixing and random layers (default: fresh)")
    add("--keep-order", action="store_true", help="train in the order of the data, unmixed")
    add("--overwrite", action="store_true", help="replace a run that is in --output")
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


def train(flags: argparse.Namespace) -> Trainer:
    """Train as the flags say, and write the run."""
    import distkeras_grid
    from distkeras_grid.spark.dataframes import read_parquet, read_tiles, resolve_features
    from distkeras_grid.spark.session import build_session
    from distkeras_grid.spark.storage import Storage

    arguments = trainer_arguments(flags)
    spark = build_session("distkeras-grid train", master=flags.master)
    storage = Storage(spark)
    check_output(storage, flags.output, overwrite=flags.overwrite)
    if flags.split is None:
        data = read_parquet(spark, flags.data)
    else:
        data = read_tiles(flags.data, splits=(flags.split,))[0]
    validation = flags.validation_data
    if flags.validation_split is not None:
        validation = read_tiles(flags.data, splits=(flags.validation_split,))[0]
    features = resolve_features(data, arguments.get("features_col", "features"))
    model = load_model(flags.model, storage, features)
    trainer: Trainer = getattr(distkeras_grid, flags.trainer)(model, **arguments)
    trainer.train(
        data,
        shuffle=not flags.keep_order,
        validation_data=validation,
        sample_weight_col=flags.sample_weight,
        seed=flags.seed,
    )
    trainer.save(flags.output, overwrite=flags.overwrite)
    print(summary(trainer, flags.output))
    return trainer


def check_output(storage: Storage, uri: str, *, overwrite: bool) -> None:
    """Refuse a folder that cannot be written before anything is trained.

    Raises
    ------
    OutputExistsError
        If it holds a run.
    StorageError
        If the file system refuses.
    """
    if not overwrite and storage.exists(f"{uri}/run.json"):
        raise OutputExistsError(
            f"--output {uri!r} holds a run already; choose another, or add --overwrite."
        )
    new = not storage.exists(uri)
    probe = f"{uri}/_writable"
    storage.write_text(probe, "", overwrite=True)
    storage.delete(uri if new else probe)


def load_model(source: str, storage: Storage, features: Field) -> keras.Model:
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


def call_model_function(source: str, function: Any, features: Field) -> keras.Model:
    """Call a model function with the data's shape and number of classes, if it takes them.

    Parameters
    ----------
    source : str
        What ``--model`` said.
    function : callable
        What it names.
    features : Field
        The feature column.

    Raises
    ------
    ConfigurationError
        If it takes what is not known of the data.
    """
    import inspect

    offered: dict[str, Any] = {"shape": features.shape}
    if features.classes:
        offered["classes"] = len(features.classes)
    taken = inspect.signature(function).parameters
    required = [
        name
        for name, parameter in taken.items()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    if unknown := [name for name in required if name not in offered]:
        raise ConfigurationError(
            f"--model {source!r} needs {', '.join(unknown)}; known of column {features.name!r} "
            f"are {offered}. Give the parameter a default."
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
