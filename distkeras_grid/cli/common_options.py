"""What every command takes: the format of its lines."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence

from distkeras_grid.cli.console import JSON, TEXT, json_lines, tell_defect
from distkeras_grid.cli.exit_codes import HELP, ExitCode, run_command
from distkeras_grid.cli.parser import Parser
from distkeras_grid.signals import no_traces_of_py4j, terminable
from distkeras_grid.spark.local_names import use_utf8


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add what every command takes; the end of every help text tells of it."""
    parser.add_argument("--log-format", choices=(TEXT, JSON), default=TEXT, help=argparse.SUPPRESS)


def parse(verb: str, argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Return what every command takes, and the other flags."""
    parser = Parser(prog=f"distkeras-grid {verb}", add_help=False, allow_abbrev=False)
    add_flags(parser)
    return parser.parse_known_args(argv)


def run(
    verb: str,
    command: Callable[[Sequence[str]], int],
    argv: Sequence[str],
    of_job: Sequence[str] = (),
) -> int:
    """Run a command as ``--log-format`` says; return its exit code."""
    flags, rest = parse(verb, argv)
    rest += of_job
    # Of what TensorFlow writes at start-up only errors concern who reads a command's output.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    use_utf8()
    if flags.log_format == TEXT:
        return _interruptible(command, rest)
    code: int = ExitCode.FAILED
    with json_lines(verb) as end:
        try:
            code = _interruptible(command, rest)
        except SystemExit as stop:  # argparse, after it has told why
            code = stop.code if isinstance(stop.code, int) else ExitCode.USAGE
        except Exception as error:
            tell_defect()
            raise SystemExit(code) from error
        finally:
            known = code in HELP
            end(code, ExitCode(code).name if known else "", HELP[ExitCode(code)] if known else "")
    return code


def _interruptible(command: Callable[[Sequence[str]], int], rest: Sequence[str]) -> int:
    with terminable(), no_traces_of_py4j():
        return run_command(lambda: command(rest))
