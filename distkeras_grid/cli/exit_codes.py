"""One table of exit codes for all commands and jobs, and the guard that applies it."""

from __future__ import annotations

import argparse
import io
import socket
import sys
from collections.abc import Callable, Sequence
from enum import IntEnum

from distkeras_grid.cli.console import print_error
from distkeras_grid.errors import (
    BusyError,
    ClusterError,
    ConfigurationError,
    DataError,
    EnvironmentMismatchError,
    GridError,
    NonFiniteCenterError,
    NotAuthenticatedError,
    OutlierError,
    ParameterServerError,
    StorageError,
    TrainingError,
    ValidateError,
)
from distkeras_grid.file_systems import STRANGER, meaning
from distkeras_grid.signals import is_interrupt


class ExitCode(IntEnum):
    """The exit code of a command."""

    OK = 0
    FAILED = 1
    USAGE = 2
    DATA = 3
    STORAGE = 4
    CLUSTER = 5
    TRAINING = 6
    PARTIAL = 7
    BUSY = 75
    INTERRUPTED = 130


HELP = {
    ExitCode.OK: "all done",
    ExitCode.FAILED: "an error of the program itself; the traceback or the message tells where",
    ExitCode.USAGE: "a flag or a setting is wrong",
    ExitCode.DATA: "the data do not fit: columns, labels, splits, images",
    ExitCode.STORAGE: "a path cannot be read or written, exists already, or has no space; or there "
    "is no valid Kerberos ticket",
    ExitCode.CLUSTER: "Spark or the parameter server cannot run it: slots, packages, network",
    ExitCode.TRAINING: "training failed: a loss that is not finite, a worker that gave up",
    ExitCode.PARTIAL: "done, but some images could not be read; the output lists them",
    ExitCode.BUSY: "another command works on the same data set or sandbox; the message says more",
    ExitCode.INTERRUPTED: "interrupted by Ctrl-C or SIGTERM; the work was stopped, also on YARN",
}

# Looked up in this order, so that a class stands before its base.
_CODES: tuple[tuple[type[GridError], ExitCode], ...] = (
    (ConfigurationError, ExitCode.USAGE),
    (DataError, ExitCode.DATA),
    (StorageError, ExitCode.STORAGE),
    (EnvironmentMismatchError, ExitCode.CLUSTER),
    (ClusterError, ExitCode.CLUSTER),
    (NonFiniteCenterError, ExitCode.TRAINING),
    (ValidateError, ExitCode.TRAINING),
    (OutlierError, ExitCode.TRAINING),
    (ParameterServerError, ExitCode.CLUSTER),
    (TrainingError, ExitCode.TRAINING),
    (BusyError, ExitCode.BUSY),
)


def exit_code(error: BaseException) -> ExitCode:
    """Return the code for an exception.

    Examples
    --------
    >>> exit_code(DataError("no rows")), exit_code(KeyboardInterrupt())
    (<ExitCode.DATA: 3>, <ExitCode.INTERRUPTED: 130>)
    """
    if isinstance(error, KeyboardInterrupt):
        return ExitCode.INTERRUPTED
    return next((code for kind, code in _CODES if isinstance(error, kind)), ExitCode.FAILED)


RUNNING = """\
every command also takes:
  --log-format json  write each line as a JSON object; the last one has the exit code (text)

"""


def exit_codes_help() -> str:
    """Return what every help text ends with: flags that all commands take, and the table."""
    return (
        RUNNING + "exit codes:\n" + "".join(f"  {code:>3}  {text}\n" for code, text in HELP.items())
    )


def main_of(
    build_parser: Callable[[], argparse.ArgumentParser],
    command: Callable[[argparse.Namespace], object],
) -> Callable[[Sequence[str] | None], int]:
    """Return the ``main`` of a verb: it parses the flags, runs the command, returns the code."""

    def main(argv: Sequence[str] | None = None) -> int:
        flags = build_parser().parse_args(argv)
        return run_command(lambda: command(flags))

    return main


def run_command(command: Callable[[], object]) -> int:
    """Run a command; turn a `GridError` or an exception of Spark into one line and an exit code.

    The exception's notes stand in that line, too. Any other exception is a defect and passes with
    its traceback. An interrupt, and an error of Spark that it has caused, is told as such. What a
    command returns is its exit code, if it is a number.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        # In a file or a pipe, too, lines shall come as they are said, and those of both streams in
        # their order.
        sys.stdout.reconfigure(line_buffering=True)
    try:
        result = command()
    except KeyboardInterrupt as interrupt:
        return _interrupted(interrupt)
    except Exception as error:
        if is_interrupt(error) and any(map(_is_of_spark, (error, error.__cause__))):
            return _interrupted(error)
        known = error if isinstance(error, GridError) else _error_of_spark(error)
        if known is None:
            raise
        _tell(f"{type(known).__name__}: {known}", error)
        return exit_code(known)
    return result if isinstance(result, int) else ExitCode.OK


def _interrupted(error: BaseException) -> int:
    """Stop what Spark still does, and say so."""
    from distkeras_grid.spark.cancel import stop_work

    stop_work()
    _tell("interrupted", error)
    return ExitCode.INTERRUPTED


def _tell(message: str, error: BaseException) -> None:
    notes: list[str] = getattr(error, "__notes__", [])
    text = "; ".join([message.removesuffix("."), *notes]) if notes else message
    print_error(text)


def _is_of_spark(error: BaseException | None) -> bool:
    """Whether an error is one of Spark, or of the connection to its JVM."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    return isinstance(error, Py4JError | PySparkException | OSError)


def _error_of_spark(error: Exception) -> GridError | None:
    """Return ours for an error that Spark raised, None for any other."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    from distkeras_grid.spark.driver_jvm import resolves
    from distkeras_grid.spark.worker_jobs import job_error, spark_reason

    if not isinstance(error, Py4JJavaError | PySparkException):
        return None
    session = SparkSession.getActiveSession()
    if session is None:
        reason = spark_reason(error)
        if advice := meaning(STRANGER, reason):
            return NotAuthenticatedError(f"Spark does not start: {reason}. {advice}")
        # YARN's filter comes while the page's handlers are attached: a race in Spark 4.3.
        met = "ConcurrentModificationException" in reason
        advice = " Run it again, or with --conf spark.ui.enabled=false." if met else ""
        if "JAVA_GATEWAY_EXITED" in reason and not resolves(host := socket.gethostname()):
            advice = (
                f" This machine's own name {host!r} has no address: add it to /etc/hosts, or set "
                "SPARK_LOCAL_IP to the address that executors reach."
            )
        return ClusterError(f"Spark does not start: {reason}{advice}")
    context = session.sparkContext
    return job_error(str(context.appName), spark_reason(error), str(context.master))
