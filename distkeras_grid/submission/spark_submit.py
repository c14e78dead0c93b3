"""Runs ``spark-submit``: with visible output, or until YARN has accepted the application."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

import psutil

from distkeras_grid.errors import ClusterError, ConfigurationError
from distkeras_grid.logs import cause_and_end

# Enough to upload Spark's own jars if the cluster has none, and to be accepted.
SUBMIT_SECONDS = 900.0
# Times after an interrupt: for the driver to write a last checkpoint and to stop the executors, for
# its JVM to end after it, and for killed processes to go. Together they are less than a service
# manager waits (TimeoutStopSec in jobs/schedule).
STOP_SECONDS = 60.0
END_SECONDS = 20.0
KILL_SECONDS = 10.0
LAST_LINES = 15


def spark_submit_path() -> str:
    """Return the command of the Spark that this environment uses (``SPARK_HOME``, or PySpark)."""
    from pyspark.find_spark_home import _find_spark_home

    return str(Path(_find_spark_home()) / "bin" / "spark-submit")


def check_hadoop_settings(environment: Mapping[str, str] = os.environ) -> None:
    """Refuse to look for YARN if no variable says where it is."""
    if not environment.get("HADOOP_CONF_DIR") and not environment.get("YARN_CONF_DIR"):
        raise ConfigurationError(
            "HADOOP_CONF_DIR is not set. Set it to the folder with the cluster's core-site.xml "
            "and yarn-site.xml (for a sandbox: source its environment.sh)."
        )


def follow(command: Sequence[str]) -> int:
    """Run a command with visible output; return its exit code.

    An interrupt of this process, whoever sends it, interrupts the driver once: the Python that
    spark-submit's JVM has started. It needs the JVM to stop the executors and to write what is to
    be kept, so the JVM is interrupted only if they have not ended after a minute. What does not end
    then is killed, and all of it at a second interrupt.
    """
    # A separate group: otherwise Ctrl-C in a terminal would reach it directly, and SIGTERM never.
    with subprocess.Popen(command, process_group=0) as process:
        try:
            return process.wait()
        except KeyboardInterrupt:
            _stop(process)
            raise


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Interrupt the driver, then its JVM; kill what does not end, or all if interrupted again."""
    # In a script's background SIGINT is ignored, and children inherit that.
    ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    number = signal.SIGTERM if ignored else signal.SIGINT
    drivers = _drivers(process)
    try:
        for driver in drivers:
            with suppress(psutil.NoSuchProcess):
                driver.send_signal(number)
        _, left = psutil.wait_procs(drivers, STOP_SECONDS)
        if drivers and not left:
            _wait(process, END_SECONDS)
        if process.poll() is None:
            _send(process, number, END_SECONDS if drivers else STOP_SECONDS)
    finally:
        # A second interrupt passes through here, too: else the command would go on alone.
        if process.poll() is None:
            _send(process, signal.SIGKILL, KILL_SECONDS)
        for driver in drivers:
            with suppress(psutil.NoSuchProcess):
                driver.kill()


def _drivers(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """Return what a command has started in its group: for spark-submit, the driver's Python.

    In cluster mode, and before there is a driver, there is none.
    """
    drivers = []
    with suppress(psutil.NoSuchProcess):
        for child in psutil.Process(process.pid).children():
            with suppress(psutil.NoSuchProcess, ProcessLookupError):
                # The shell that became the JVM leaves children that nobody waits for.
                ended = child.status() == psutil.STATUS_ZOMBIE
                if not ended and os.getpgid(child.pid) == process.pid:
                    drivers.append(child)
    return drivers


def _send(process: subprocess.Popen[bytes], number: signal.Signals, seconds: float) -> None:
    """Send a signal to a command and its children; wait for the command's end, if it comes."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)
    _wait(process, seconds)


def _wait(process: subprocess.Popen[bytes], seconds: float) -> None:
    with suppress(subprocess.TimeoutExpired):
        process.wait(seconds)


def hand_over(command: Sequence[str]) -> None:
    """Run a command that ends when YARN has accepted the application."""
    with tempfile.TemporaryFile() as log:
        try:
            ended = subprocess.run(
                command,
                check=False,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                timeout=SUBMIT_SECONDS,
            )
        except subprocess.TimeoutExpired as error:
            raise ClusterError(
                f"YARN has not accepted the application after {SUBMIT_SECONDS:.0f} s. "
                f"The end of what spark-submit wrote:\n{last_lines(log)}"
            ) from error
        if ended.returncode:
            raise ClusterError(
                f"spark-submit ended with code {ended.returncode}. The end of what it wrote:\n"
                f"{last_lines(log)}"
            )


def last_lines(log: IO[bytes]) -> str:
    """Return the line of a log that says why it failed, and the last lines without stacks."""
    log.seek(0)
    return cause_and_end(log.read().decode(errors="replace"), LAST_LINES) or "no output"
