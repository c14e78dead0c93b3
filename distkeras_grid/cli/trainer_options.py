"""Options of the command line that become arguments of a trainer, from the table of parameters."""

from __future__ import annotations

import argparse
import ast
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, get_args, get_origin

from distkeras_grid.cli.parser import columns
from distkeras_grid.errors import ConfigurationError, UnknownArgumentError
from distkeras_grid.spec import Outliers
from distkeras_grid.trainers.config import TrainerConfig
from distkeras_grid.trainers.parameters import Parameter

#: All parameters that have an option of their own.
PARAMETERS = tuple(each for each in TrainerConfig.parameters.values() if each.flag)


def add_trainer_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of a trainer's parameters, and ``--set`` for those without one."""
    add = parser.add_argument_group("arguments of the trainer").add_argument
    for each in PARAMETERS:
        default = "" if each.default in (None, "") else f" ({each.default})"
        text = f"{each.summary[0].lower()}{each.summary[1:]}{default}"
        choices = choices_of(each)
        if each.metavar:
            add(each.option, type=converter_of(each), metavar=each.metavar, help=text)
        elif len(choices) > 1:
            add(each.option, choices=choices, help=text)
        else:
            add(each.option, action="store_const", const=choices[0], help=text)
    add(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        dest="settings",
        help="any other argument of the trainer, with its value in Python's notation, such as "
        "communication_window=8; may be repeated",
    )


def trainer_arguments(flags: argparse.Namespace) -> dict[str, Any]:
    """Return the trainer's arguments from flags and ``--set``, without those that are not given."""
    arguments = parse_settings(flags.settings)
    for each in PARAMETERS:
        value = getattr(flags, each.option.removeprefix("--").replace("-", "_"))
        if value is None:
            continue
        if each.name in arguments:
            raise ConfigurationError(
                f"{each.option} and --set {each.name}=... are the same argument. Give one."
            )
        arguments[each.name] = value
    return arguments


def choices_of(parameter: Parameter) -> tuple[str, ...]:
    """Return the texts that a parameter can be.

    Examples
    --------
    >>> choices_of(TrainerConfig.parameters["on_nonfinite"])
    ('skip', 'stop')
    """
    kinds = (parameter.type, *get_args(parameter.type))
    return next((get_args(kind) for kind in kinds if get_origin(kind) is Literal), ())


def converter_of(parameter: Parameter) -> Callable[[str], Any]:
    """Return what makes a value of the text of an option."""
    if parameter.name in CONVERTERS:
        return CONVERTERS[parameter.name]
    kinds = (parameter.type, *get_args(parameter.type))
    return next(kind for kind in (int, float, str) if kind in kinds)


def interval(text: str) -> float | str:
    """Return seconds as a number, and any other text as it is, for the trainer to check.

    Examples
    --------
    >>> interval("90"), interval("epoch")
    (90.0, 'epoch')
    """
    try:
        return float(text)
    except ValueError:
        return text


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


def outliers(text: str) -> Outliers:
    """Return what an outlier is, from a command line.

    Examples
    --------
    >>> outliers("outliers,factor=20")
    Outliers(factor=20.0, on_outlier='skip')
    """
    name, *settings = text.split(",")
    if name != "outliers":
        raise argparse.ArgumentTypeError(
            f"--validate takes outliers, with factor and on_outlier. Received: {text!r}."
        )
    try:
        arguments, known = parse_settings(settings), Outliers.__struct_fields__
        if unknown := [name for name in arguments if name not in known]:
            raise UnknownArgumentError.among("outliers", unknown, known)
        return Outliers(**arguments)
    except ConfigurationError as error:
        raise argparse.ArgumentTypeError(str(error).replace("--set", "--validate", 1)) from error


#: What makes a value of the text of an option, where its type does not say that.
CONVERTERS: Mapping[str, Callable[[str], Any]] = {
    "features_col": columns,
    "label_col": columns,
    "checkpoint_every": interval,
    "validate": outliers,
}
