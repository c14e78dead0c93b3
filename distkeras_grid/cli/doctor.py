"""``distkeras-grid doctor``: what is wrong with a cluster, before a training finds out."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from distkeras_grid.cli import preflight
from distkeras_grid.cli.console import print_result
from distkeras_grid.cli.exit_codes import ExitCode, main_of
from distkeras_grid.cli.parser import Parser, add_master_flag, verb_parser
from distkeras_grid.cli.spinner import spinner
from distkeras_grid.errors import ConfigurationError
from distkeras_grid.spark.memory import ModelSize, check_containers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from distkeras_grid.spark.doctor import CheckResult

DESCRIPTION = """\
Check Java, Hadoop's configuration, Spark's settings, the executors' Python, the connection from the
executors to the driver, storage, and on YARN and Kubernetes the memory of the containers. Each
check prints one line, with what to change. It takes a few seconds after Spark has started. Every
training checks slots, packages and connection itself, and stops at the first that fails. The exit
code is 5 if any fails.
"""
EPILOG = """\
examples:
  distkeras-grid doctor
  distkeras-grid doctor --master yarn --workers 4 --model 5M --storage hdfs:///runs
  distkeras-grid submit --executors 4 doctor --workers 4 --model 25M
  distkeras-grid doctor --workers 16 --servers 4 --model 100M
"""


def build_parser() -> Parser:
    """Return the parser of the command line."""
    parser = verb_parser("doctor", DESCRIPTION, EPILOG)
    add = parser.add_argument
    add_master_flag(parser)
    add(
        "--workers",
        type=int,
        metavar="N",
        help="num_workers of the training (one for each task slot)",
    )
    add(
        "--model",
        type=weight_count,
        default=ModelSize.weights,
        metavar="N",
        help="number of the model's weights, for the memory of containers, such as 25M (5M)",
    )
    help_text = "num_servers of the training, for the memory of containers (1)"
    add("--servers", type=int, default=1, metavar="N", help=help_text)
    add("--storage", metavar="URI", help="also write, read and delete a small file there")
    add("--host", metavar="NAME", help="master_host of the training")
    add("--port", type=int, default=0, help="master_port of the training (any free port)")
    return parser


def check_early(flags: argparse.Namespace, _: preflight.SubmittedDriver | None = None) -> None:
    """Refuse numbers that no training has; the cluster itself is looked at by the driver."""
    if flags.servers < 1:
        raise ConfigurationError(f"--servers must be at least 1. Received: {flags.servers}.")


def doctor(flags: argparse.Namespace) -> ExitCode:
    """Print a line for each finding, as it is found."""
    check_early(flags)
    began = time.monotonic()
    levels = [print_finding(finding) for finding in _before_spark(flags)]
    if "bad" in levels:
        print_result("Spark was not started. Fix the problems above first.")
        return ExitCode.CLUSTER
    from distkeras_grid.spark.session import build_session

    with spinner("starting Spark"):
        spark = build_session("distkeras-grid doctor", master=flags.master)
    levels += [print_finding(finding) for finding in _in_session(flags, spark)]
    counts = ", ".join(f"{levels.count(level)} {level}" for level in ("bad", "warn", "ok"))
    print_result(f"{counts} in {time.monotonic() - began:.0f} s")
    return ExitCode.CLUSTER if "bad" in levels else ExitCode.OK


def print_finding(finding: CheckResult) -> str:
    """Print a finding; return its level."""
    # What is bad stands out in a page of lines.
    mark = "BAD" if finding.level == "bad" else str(finding.level)
    print_result(f"{mark:<4}  {finding.subject:<15}  {finding.text}")
    return str(finding.level)


def _before_spark(flags: argparse.Namespace) -> Iterator[CheckResult]:
    """Look at what Spark itself needs to start."""
    from distkeras_grid.spark.doctor import CheckLevel, CheckResult, check_hadoop
    from distkeras_grid.spark.session import planned_settings

    home = os.environ.get("JAVA_HOME")
    if shutil.which("java", path=f"{home}/bin" if home else None) is None:
        where = f"JAVA_HOME={home} has no bin/java" if home else "there is no java on the PATH"
        text = f"{where}: install Java 17 or later, and set JAVA_HOME."
        yield CheckResult("java", CheckLevel.BAD, text)
        return
    folder = os.environ.get("HADOOP_CONF_DIR") or os.environ.get("YARN_CONF_DIR")
    files = _readable(Path(folder)) if folder else []
    planned = planned_settings(flags.master)
    submitted = planned.get("spark.submit.deployMode") == "cluster"
    yield check_hadoop(planned["spark.master"], folder, files, submitted=submitted)


def _readable(folder: Path) -> list[str]:
    if not folder.is_dir():
        return []
    return [path.name for path in folder.iterdir() if os.access(path, os.R_OK)]


def _in_session(flags: argparse.Namespace, spark: SparkSession) -> Iterator[CheckResult]:
    from distkeras_grid.engine.registry import BACKENDS, backend_named, configured_backend
    from distkeras_grid.spark import doctor as checks
    from distkeras_grid.spark.addresses import place_server
    from distkeras_grid.spark.interpreters import (
        TRAINING_PACKAGES,
        check_executors,
        training_packages,
    )
    from distkeras_grid.spark.session import executor_slots, stable_slot_count
    from distkeras_grid.spark.storage import Storage

    context = spark.sparkContext
    setting = context.getConf().get
    about = f"Spark {spark.version} on {context.master}, {context.applicationId}"
    yield checks.CheckResult("session", checks.CheckLevel.OK, about)
    slots = stable_slot_count(spark, flags.workers)
    yield checks.check_slots(slots, flags.workers)
    yield from checks.check_scheduling(setting)
    yield from checks.check_gpus(setting)
    backend = configured_backend()
    yield checks.as_check_result(
        "backend", lambda: f"Keras runs on {backend_named(backend).packages[0]}"
    )
    packages = training_packages(backend) if backend in BACKENDS else TRAINING_PACKAGES
    yield checks.as_check_result(
        "executors",
        lambda: checks.describe_executors(check_executors(spark, packages), sys.executable),
    )
    place = place_server(spark, flags.host, flags.port)

    def reach() -> str:
        check_executors(spark, packages, place)
        port = f"port {place.port}" if place.port else "any free port"
        return f"executors reach the parameter server's place: {place.advertised_host}, {port}"

    yield checks.as_check_result("server", reach)
    yield checks.check_encryption(setting, place.advertised_host)
    if flags.storage:
        storage = Storage(spark)
        yield checks.as_check_result(
            "storage", lambda: checks.check_storage(storage, flags.storage)
        )
    model = ModelSize(flags.model, servers=flags.servers)
    workers = flags.workers or max(1, slots)
    yield from check_containers(
        *(setting, str(context.master), model), slots=executor_slots(setting), workers=workers
    )


def weight_count(text: str) -> int:
    """Return a number of weights.

    Examples
    --------
    >>> weight_count("25M"), weight_count("1.5k")
    (25000000, 1500)
    """
    number = re.fullmatch(r"(\d+(?:\.\d+)?)([kMG]?)", text)
    if number is None:
        raise argparse.ArgumentTypeError(
            f"a number of weights, such as 25M; model.count_params() tells it. Received: {text!r}"
        )
    return int(float(number[1]) * {"": 1, "k": 10**3, "M": 10**6, "G": 10**9}[number[2]])


main = main_of(build_parser, doctor)
