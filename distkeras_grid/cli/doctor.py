"""``distkeras-grid doctor``: what is wrong with a cluster, before a training finds out."""

from __future__ import annotations

import argparse
import io
import math
import os
import re
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from distkeras_grid.cli import preflight
from distkeras_grid.cli.console import print_result
from distkeras_grid.cli.exit_codes import ExitCode, run_command
from distkeras_grid.cli.parser import verb_parser
from distkeras_grid.cli.spinner import spinner
from distkeras_grid.errors import ConfigurationError
from distkeras_grid.model_parallel.communication_cost import WINDOW, Traffic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from distkeras_grid.model_parallel.communication_cost import Kind
    from distkeras_grid.spark.doctor import CheckResult
    from distkeras_grid.spark.memory import ModelSize
    from distkeras_grid.spark.storage import Storage

DESCRIPTION = """\
Check Java, Hadoop's configuration, Spark's settings, the executors' Python, the connection from the
executors to the driver, memory and storage. Each check prints one line, with what to change. It
takes a few seconds after Spark has started. Every training makes the same checks and stops at the
first that fails; doctor makes all of them. The exit code is 5 if any fails.
"""
#: Flags whose number of tasks share one model; each has a trainer.
SHARING = {"stages": "PlacedLayers", "towers": "Towers", "devices": "ConvolutionSplit"}
EPILOG = """\
examples:
  distkeras-grid doctor
  distkeras-grid doctor --master yarn --workers 4 --model model.keras --storage hdfs:///runs
  distkeras-grid submit --executors 4 doctor --workers 4 --model 25M
  distkeras-grid doctor --workers 16 --servers 4 --model 100M
  distkeras-grid doctor --stages 4 --model 100M --batch-size 64 --inputs 3072 --outputs 4096 \\
    --batch-seconds 0.5
  distkeras-grid doctor --devices 4 --model net.keras --inputs 32768 --outputs 98304
"""
KLIST_SECONDS = 10.0
#: Path of a kernel in a model's file, which has the classes of layers in place of their names.
KERNEL = re.compile(r"(^|/)(depthwise_conv[12]d|conv[123]d)(_\d+)?/vars/0$")
#: What is counted in a model's file.
_Count = TypeVar("_Count")


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = verb_parser("doctor", DESCRIPTION, EPILOG)
    add = parser.add_argument
    add("--master", help="Spark master of a session started here (default: local[*,4])")
    add(
        "--workers",
        type=int,
        metavar="N",
        help="num_workers of the training (one for each task slot)",
    )
    add(
        "--model",
        metavar="FILE|N",
        help="FILE.keras on any Hadoop path, or its weights, such as 25M",
    )
    add(
        "--servers",
        type=_count,
        default=1,
        metavar="N",
        help="num_servers of the training (1)",
    )
    shared = parser.add_mutually_exclusive_group()
    for name, trainer in SHARING.items():
        about = f"{name} of a {trainer}, in place of --workers"
        shared.add_argument(f"--{name}", type=_count, metavar="N", help=about)
    add("--batch-size", type=_count, default=32, metavar="N", help="rows of a batch of these (32)")
    add(
        "--inputs",
        type=_count,
        metavar="N",
        help="numbers of a row in the input: of the model, of a tower, of the divided layers",
    )
    add(
        "--outputs",
        type=_count,
        metavar="N",
        help="numbers of a row at each cut, in a tower's output, in those of the divided layers",
    )
    add(
        "--divided-weights",
        type=_weights,
        metavar="N",
        help="weights of the layers that --devices divides, such as 15M (default: those of the "
        "convolution kernels in --model FILE.keras)",
    )
    add(
        "--window",
        type=_count,
        metavar="N",
        help=f"communication_window of the training, in batches ({WINDOW}; by default a run takes "
        "less if an epoch has few batches)",
    )
    add(
        "--batch-seconds",
        type=_seconds,
        metavar="S",
        help="how long a batch takes, for the bytes a second",
    )
    add("--storage", metavar="URI", help="also write, read and delete a small file there")
    add("--host", metavar="NAME", help="master_host of the training")
    add("--port", type=int, default=0, help="master_port of the training (any free port)")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    flags = build_parser().parse_args(argv)
    check_early(flags)
    return run_command(lambda: doctor(flags))


def check_early(flags: argparse.Namespace, _: preflight.DriverEnvironment = preflight.HERE) -> None:
    """Refuse flags that do not go together; the cluster itself is looked at by the driver."""
    parser = build_parser()
    if kind := sharing(flags):
        if flags.workers or flags.servers > 1:
            parser.error(f"--{kind} has one worker and one server: leave out --workers, --servers")
        if not (flags.inputs and flags.outputs):
            parser.error(f"--{kind} needs --inputs and --outputs")
        if kind == "devices" and not flags.divided_weights and not _is_file(flags.model):
            parser.error("--devices needs --divided-weights, or the kernels in --model FILE.keras")
    if not kind and (flags.window or flags.batch_seconds):
        parser.error("--window and --batch-seconds belong to --stages, --towers and --devices")
    if flags.divided_weights and kind != "devices":
        parser.error("--divided-weights belongs to --devices")


def sharing(flags: argparse.Namespace) -> Kind | None:
    """Return the flag by which tasks share one model; None if each worker has its own."""
    kinds: tuple[Kind, ...] = ("stages", "towers", "devices")
    return next((kind for kind in kinds if getattr(flags, kind)), None)


def _count(text: str) -> int:
    """Read a number of at least 1."""
    if not re.fullmatch(r"\d+", text) or (value := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"1 or more is expected. Received: {text!r}")
    return value


def _seconds(text: str) -> float:
    """Read a time above 0."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"seconds above 0 are expected. Received: {text!r}")
    return value


def _weights(text: str) -> int:
    """Read a number of weights, such as 25M."""
    if (number := _number(text)) is None or number < 1:
        raise argparse.ArgumentTypeError(
            f"a number of weights is expected, such as 15M. Received: {text!r}"
        )
    return number


def _number(text: str) -> int | None:
    """Return a number of weights; None if the text is something else."""
    number = re.fullmatch(r"(\d+(?:\.\d+)?)([kMG]?)", text)
    if number is None:
        return None
    factor = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9}[number.group(2)]
    return int(float(number.group(1)) * factor)


def _is_file(model: str | None) -> bool:
    return model is not None and _number(model) is None


def doctor(flags: argparse.Namespace) -> ExitCode:
    """Print a line for each finding, as it is found."""
    began = time.monotonic()
    levels = [_tell(finding) for finding in _before_spark(flags)]
    if "bad" in levels:
        print_result("Spark was not started: mend this first.")
        return ExitCode.CLUSTER
    from distkeras_grid.spark.session import build_session

    with spinner("starting Spark"):
        spark = build_session("distkeras-grid doctor", master=flags.master)
    levels += [_tell(finding) for finding in _in_session(flags, spark)]
    counts = ", ".join(f"{levels.count(level)} {level}" for level in ("bad", "warn", "ok"))
    print_result(f"{counts} in {time.monotonic() - began:.0f} s")
    return ExitCode.CLUSTER if "bad" in levels else ExitCode.OK


def _tell(finding: CheckResult) -> str:
    """Print a finding; return its level."""
    # What is bad stands out in a page of lines.
    mark = "BAD" if finding.level == "bad" else str(finding.level)
    print_result(f"{mark:<4}  {finding.subject:<15}  {finding.text}")
    return str(finding.level)


def _before_spark(flags: argparse.Namespace) -> Iterator[CheckResult]:
    """Look at what Spark itself needs to start."""
    from distkeras_grid.spark.doctor import CheckLevel, CheckResult, check_hadoop, check_kerberos
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
    if folder and "core-site.xml" in files:
        from distkeras_grid.webhdfs.sites import read_sites

        authentication = read_sites(folder).get("hadoop.security.authentication", "simple")
        if authentication == "kerberos":
            keytab = planned.get("spark.kerberos.keytab")
            yield from check_kerberos(authentication, has_ticket(), keytab)


def _readable(folder: Path) -> list[str]:
    if not folder.is_dir():
        return []
    return [path.name for path in folder.iterdir() if os.access(path, os.R_OK)]


def has_ticket() -> bool | None:
    """Return whether klist finds a valid Kerberos ticket; None if there is none that says so."""
    klist = shutil.which("klist")
    if klist is None:
        return None
    try:
        asked = subprocess.run([klist, "-s"], check=False, timeout=KLIST_SECONDS)
    except subprocess.TimeoutExpired:
        return None
    return asked.returncode == 0


def _in_session(flags: argparse.Namespace, spark: SparkSession) -> Iterator[CheckResult]:
    from distkeras_grid.engine.registry import BACKENDS, backend_named, configured_backend
    from distkeras_grid.spark.addresses import place_server
    from distkeras_grid.spark.doctor import (
        CheckLevel,
        CheckResult,
        as_check_result,
        check_encryption,
        check_gpus,
        check_java,
        check_renames,
        check_scheduling,
        check_slots,
        check_storage,
        check_threads,
        describe_executors,
    )
    from distkeras_grid.spark.interpreters import (
        TRAINING_PACKAGES,
        check_executors,
        training_packages,
    )
    from distkeras_grid.spark.session import stable_slot_count
    from distkeras_grid.spark.storage import Storage

    context = spark.sparkContext
    setting = context.getConf().get
    jvm: Any = context._jvm
    yield check_java(str(jvm.java.lang.System.getProperty("java.version")))
    about = f"Spark {spark.version} on {context.master}, {context.applicationId}"
    yield CheckResult("session", CheckLevel.OK, about)
    kind = sharing(flags)
    wanted = getattr(flags, kind) if kind else flags.workers
    slots = stable_slot_count(spark, wanted)
    yield check_slots(slots, wanted)
    slots = max(1, slots)
    yield from check_scheduling(setting, barrier=kind is not None)
    yield from check_threads(os.environ)
    yield from check_gpus(setting)
    backend = configured_backend()
    yield as_check_result("backend", lambda: f"Keras runs on {backend_named(backend).packages[0]}")
    packages = training_packages(backend) if backend in BACKENDS else TRAINING_PACKAGES
    yield as_check_result(
        "executors", lambda: describe_executors(check_executors(spark, packages), sys.executable)
    )
    place = place_server(spark, flags.host, flags.port)

    def reach() -> str:
        check_executors(spark, packages, place)
        port = f"port {place.port}" if place.port else "any free port"
        return f"executors reach the parameter server's place: {place.advertised_host}, {port}"

    yield as_check_result("server", reach)
    yield check_encryption(setting, place.advertised_host)
    storage = Storage(spark)
    if flags.storage:
        yield as_check_result("storage", lambda: check_storage(storage, flags.storage))
        yield from check_renames(storage.resolve(flags.storage))
    model = model_size(flags.model, storage)
    traffic = _traffic(flags, model.weights, storage)
    yield from _memory(spark, flags, model, slots, traffic)
    yield from _network(flags, model, flags.workers or slots, place.bind_host, traffic)


def _traffic(flags: argparse.Namespace, weights: int, storage: Storage) -> Traffic | None:
    """Return what tasks that share one model send each other; None if they do not share any."""
    if (kind := sharing(flags)) is None:
        return None
    divided = 0
    if kind == "devices":
        # Only these travel in a batch, and not those of the layers that stay whole.
        divided = flags.divided_weights or _counted(flags.model, storage, count_kernels)
    return Traffic(
        kind,
        getattr(flags, kind),
        max(weights, divided),
        flags.batch_size,
        flags.inputs,
        flags.outputs,
        window=flags.window or WINDOW,
        divided=divided,
    )


def _memory(
    spark: SparkSession,
    flags: argparse.Namespace,
    model: ModelSize,
    slots: int,
    traffic: Traffic | None,
) -> Iterator[CheckResult]:
    """Compare the memory of this machine or of the containers with the model."""
    from distkeras_grid.spark.memory import check_containers, check_machine, megabytes
    from distkeras_grid.spark.session import executor_slots, local_cores

    kind = sharing(flags)
    tasks = getattr(flags, kind) if kind else flags.workers or slots
    workers = 1 if kind else tasks
    part = 0 if traffic is None else traffic.task_bytes
    model = replace(
        model,
        servers=flags.servers,
        stages=flags.stages or 1,
        part_bytes=part,
    )
    master = str(spark.sparkContext.master)
    setting = spark.sparkContext.getConf().get
    if local_cores(master) is not None:
        import psutil

        free = psutil.virtual_memory().available >> 20
        heap = megabytes(setting("spark.driver.memory") or "1g")
        yield check_machine(free, heap, model, min(workers, slots), min(tasks, slots))
    yield from check_containers(
        setting, master, model, slots=executor_slots(setting), workers=workers, tasks=tasks
    )


def _network(
    flags: argparse.Namespace,
    model: ModelSize,
    workers: int,
    bind_host: str,
    traffic: Traffic | None,
) -> Iterator[CheckResult]:
    """Say what passes the link of the driver, or of the master of one model."""
    from distkeras_grid.spark.doctor import CheckLevel, CheckResult
    from distkeras_grid.trainers.bandwidth_estimate import BandwidthEstimate, link_speed

    if traffic is not None:
        available, seconds = link_speed(bind_host), flags.batch_seconds
        slow = seconds is not None and not traffic.fits(available, seconds)
        sentence = traffic.sentence(available, seconds)
        yield CheckResult("network", CheckLevel.WARN if slow else CheckLevel.OK, sentence)
        return
    need = BandwidthEstimate(4 * model.weights, workers, 1, 1.0, available=link_speed(bind_host))
    yield CheckResult(
        "network",
        CheckLevel.OK,
        f"{4 * model.weights / 1e6:.3g} MB of weights x {workers} workers: windows that take "
        f"{need.shortest_window:.2g} s or longer do not wait for a link of "
        f"{need.available / 1e9:.3g} GB/s",
    )
    if flags.servers > 1:
        each = need.ways * need.available / flags.servers
        yield CheckResult(
            "servers",
            CheckLevel.OK,
            f"each of {flags.servers} has {4 * model.weights / flags.servers / 1e6:.3g} MB of the "
            f"weights, and folds, receives and sends {each / 1e6:.3g} MB a second at such windows",
        )


def model_size(model: str | None, storage: Storage) -> ModelSize:
    """Return what a model weighs.

    `model`: A number of weights, such as ``"25M"``, or the path of a ``.keras`` file; None for one
    that is not known.
    """
    from distkeras_grid.spark.memory import ModelSize

    if model is None:
        return ModelSize()
    if (number := _number(model)) is not None:
        return ModelSize(number)
    weights, state = _counted(model, storage, count_weights)
    return ModelSize(weights, round(state / max(weights, 1))) if state else ModelSize(weights)


def _counted(model: str, storage: Storage, count: Callable[[bytes], _Count]) -> _Count:
    """Count something in the file of a model; errors as of `model_size`."""
    content = storage.read_bytes(model)
    try:
        return count(content)
    except (zipfile.BadZipFile, KeyError, OSError) as error:
        raise ConfigurationError(
            f"--model {model} is neither a number of weights nor a .keras archive ({error!r})."
        ) from error


def count_weights(archive: bytes) -> tuple[int, int]:
    """Return the weights in a ``.keras`` archive, and what its optimizer keeps of them.

    Without Keras, which would take seconds, and without the user's own layers.
    """
    counts = {"weights": 0, "optimizer": 0}
    for name, size in _stored_sizes(archive).items():
        counts["optimizer" if name.startswith("optimizer/") else "weights"] += size
    return counts["weights"], counts["optimizer"]


def count_kernels(archive: bytes) -> int:
    """Return the weights of all kernels in a ``.keras`` archive that `ConvolutionSplit` may divide.

    Some of them may stay whole in a run, for example those in mixed precision.
    """
    return sum(size for name, size in _stored_sizes(archive).items() if KERNEL.search(name))


def _stored_sizes(archive: bytes) -> dict[str, int]:
    """Return the sizes of all variables in a ``.keras`` archive, by their paths in it."""
    import h5py
    import numpy as np

    sizes: dict[str, int] = {}

    def note(name: str, entry: object) -> None:
        if isinstance(entry, h5py.Dataset):
            sizes[name] = int(np.prod(entry.shape))

    with zipfile.ZipFile(io.BytesIO(archive)) as members:
        stored = io.BytesIO(members.read("model.weights.h5"))
    with h5py.File(stored) as file:
        file.visititems(note)
    return sizes
