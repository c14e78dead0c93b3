"""The Spark session: our own, or the user's, checked before work starts."""

from __future__ import annotations

import importlib
import json
import os
import platform
import re
import sys
import time
from collections.abc import Iterator, Mapping
from importlib import metadata
from typing import TYPE_CHECKING, Any

from distkeras_grid.errors import ConfigurationError, EnvironmentMismatchError
from distkeras_grid.spark.launch import spark_reason

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# What a training task imports; the versions must be those of the driver, or weights would be
# computed by other code than the one that evaluates them.
TRAINING_PACKAGES = ("numpy", "keras", "tensorflow", "pyarrow")
TILING_PACKAGES = ("numpy", "opencv-python-headless", "pillow", "pyarrow")
# Builds of one package under several names; the first that is installed counts.
ALIASES = {
    "tensorflow": ("tensorflow", "tensorflow-cpu", "tensorflow-intel", "tensorflow-macos"),
    "opencv-python-headless": ("opencv-python-headless", "opencv-python", "opencv-contrib-python"),
}


# spark-submit leaves the port of its JVM here, for the Python that it starts.
_SUBMITTED = "PYSPARK_GATEWAY_PORT"


def build_session(
    name: str, *, master: str | None = None, settings: Mapping[str, str] | None = None
) -> SparkSession:
    """Return the running session, or build one.

    Under ``spark-submit`` all is as the submission says, interpreter and master included. Else
    Spark starts on this machine, and executors use the interpreter that runs this.

    Parameters
    ----------
    name : str
        The application's name in Spark's pages.
    master : str, optional
        Spark master; default ``local[*,4]``: all cores, and failed tasks are tried again, which
        ``local[*]`` never does. Not used under ``spark-submit``.
    settings : mapping of str to str, optional
        Further Spark settings, where the submission does not have them.
    """
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    ours = {"spark.sql.execution.arrow.pyspark.enabled": "true", **(settings or {})}
    builder = SparkSession.builder
    if _SUBMITTED in os.environ:
        # Until something has asked for the submission's JVM, SparkConf() is empty, and what is
        # set on the builder would replace what the submission says.
        SparkContext.getSystemProperty("spark.master")
        submitted = SparkConf()
        ours = {key: value for key, value in ours.items() if not submitted.contains(key)}
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    else:
        # A stray PYSPARK_PYTHON of the shell must not give the executors another interpreter.
        os.environ["PYSPARK_PYTHON"] = sys.executable
        ours = {**_local_settings(name, master), **ours}
    for key, value in ours.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def _local_settings(name: str, master: str | None) -> dict[str, str]:
    return {
        "spark.app.name": name,
        "spark.master": master or "local[*,4]",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "2g",
    }


def active_session() -> SparkSession:
    """Return the session of this driver.

    Raises
    ------
    ConfigurationError
        If there is none, or the call comes from inside a task.
    """
    from pyspark import TaskContext
    from pyspark.sql import SparkSession

    if TaskContext.get() is not None:
        raise ConfigurationError("This runs on the driver only; it was called inside a Spark task.")
    session = SparkSession.getActiveSession()
    return session if session is not None else build_session("distkeras_grid")


# So long Spark's own schedulers wait for the first executors
# (spark.scheduler.maxRegisteredResourcesWaitingTime).
REGISTRATION_SECONDS = 30.0
# Executors of one application register within a second or two of each other.
SETTLED_SECONDS = 3.0


def settled_slots(spark: SparkSession, wanted: int | None) -> int:
    """Return `task_slots`, once no more executors are to be expected.

    Executors register for some seconds after a session has started; a run that counts at once
    would take the first of them for the whole cluster.

    Parameters
    ----------
    spark : SparkSession
        The session.
    wanted : int, optional
        Slots that are enough; by default their number must have stood still for a while.
    """
    context = spark.sparkContext
    slots = task_slots(spark)
    changed = time.monotonic()
    while local_cores(str(context.master)) is None and slots < (wanted or sys.maxsize):
        age = time.time() - context.startTime / 1000
        still = time.monotonic() - changed
        if age > REGISTRATION_SECONDS or (wanted is None and still > SETTLED_SECONDS):
            break
        time.sleep(0.2)
        if (now := task_slots(spark)) != slots:
            slots, changed = now, time.monotonic()
    return slots


def task_slots(spark: SparkSession) -> int:
    """Return how many tasks the session can run at once now, on the executors registered now."""
    context = spark.sparkContext
    conf = context.getConf()
    cores = local_cores(str(context.master))
    each = conf.get("spark.executor.cores")
    if cores is None and each:
        # The tracker counts the driver as an executor.
        tracker: Any = context._jsc.sc().statusTracker()
        cores = (len(tracker.getExecutorInfos()) - 1) * int(each)
    # On a cluster without that setting an executor has its node's cores, and this is their sum.
    cores = cores or int(context.defaultParallelism)
    return cores // int(conf.get("spark.task.cpus", "1") or 1)


def local_cores(master: str) -> int | None:
    """Return the task threads of a local master, None for any other.

    Examples
    --------
    >>> local_cores("local"), local_cores("local[3,4]"), local_cores("spark://host:7077")
    (1, 3, None)
    """
    found = re.fullmatch(r"local(?:\[(\d+|\*)(?:,\d+)?\])?", master)
    if found is None:
        return None
    count = found.group(1) or "1"
    return (os.cpu_count() or 1) if count == "*" else int(count)


# Settings by which a user asks Spark to encrypt what passes between driver and executors.
ENCRYPTION = (
    "spark.network.crypto.enabled",
    "spark.authenticate.enableSaslEncryption",
    "spark.ssl.enabled",
    "spark.ssl.rpc.enabled",
)


def check_plaintext(spark: SparkSession, *, allowed: bool) -> None:
    """Refuse to send weights in the clear where Spark's own traffic is told to be encrypted.

    Spark's own TorchDistributor refuses likewise. In local mode nothing leaves the host.

    Raises
    ------
    ConfigurationError
        Names the setting and the argument that allows it.
    """
    context = spark.sparkContext
    if allowed or local_cores(str(context.master)) is not None:
        return
    told = [name for name in ENCRYPTION if context.getConf().get(name, "false") == "true"]
    if told:
        raise ConfigurationError(
            f"{told[0]} is on, but weights travel unencrypted between executors and the parameter "
            "server (connections are authenticated). If the network is trusted, say so: "
            "allow_plaintext=True."
        )


def package_versions(names: tuple[str, ...]) -> dict[str, str | None]:
    """Return the installed version of each package, None where it is missing; imports nothing."""
    found: dict[str, str | None] = {}
    for name in names:
        found[name] = None
        for alias in ALIASES.get(name, (name,)):
            try:
                found[name] = metadata.version(alias)
                break
            except metadata.PackageNotFoundError:
                continue
    return found


def describe_interpreter(names: tuple[str, ...]) -> dict[str, Any]:
    """Return this interpreter's path, versions, and whether it can import the project."""
    return {
        "executable": sys.executable,
        "host": platform.node(),
        "python": ".".join(platform.python_version_tuple()[:2]),
        "packages": package_versions(names),
    }


_CHECKED: set[tuple[str, tuple[str, ...]]] = set()


def check_executors(spark: SparkSession, names: tuple[str, ...] = TRAINING_PACKAGES) -> None:
    """Refuse executors that lack a package, or have another version than the driver.

    One small job, once per session and list of packages. Its function is shipped by value, so
    that executors without the project can still answer.

    Raises
    ------
    EnvironmentMismatchError
        Names both interpreters and every package that is missing or differs.
    """
    key = (spark.sparkContext.applicationId, names)
    if key in _CHECKED:
        return
    mine = describe_interpreter(names)
    missing = [package for package, version in mine["packages"].items() if version is None]
    if missing:
        raise EnvironmentMismatchError(
            f"The driver's interpreter {mine['executable']} lacks {', '.join(missing)}; install "
            f"them: pip install 'distkeras_grid[tensorflow]'."
        )
    mine["packages"]["distkeras_grid"] = importlib.import_module("distkeras_grid").__version__
    slots = max(1, min(task_slots(spark), 64))
    # Rows of text and no Arrow: executors that lack pyarrow shall answer, too.
    tasks = spark.sparkContext.parallelize(range(slots), slots)
    try:
        answers = set(tasks.mapPartitions(_probe(names)).collect())
    except Exception as error:
        raise EnvironmentMismatchError(
            f"Executors cannot run the Python code of this driver, whose interpreter is "
            f"{sys.executable} (Python {mine['python']}), with theirs, "
            f"{os.environ.get('PYSPARK_PYTHON', 'python3')}: {spark_reason(error)} "
            "Set spark.pyspark.python (PYSPARK_PYTHON) to an interpreter of the same version "
            "with the same packages."
        ) from error
    problems = [p for text in sorted(answers) for p in compare_interpreters(mine, json.loads(text))]
    if problems:
        raise EnvironmentMismatchError(" ".join(dict.fromkeys(problems)))
    _CHECKED.add(key)


def _probe(names: tuple[str, ...]) -> Any:
    """Return the probe, self-contained: nothing of the project is imported to unpickle it."""
    aliases = {name: ALIASES.get(name, (name,)) for name in names}

    def probe(_rows: Iterator[int]) -> Iterator[str]:
        import importlib
        import json
        import platform
        import sys
        from contextlib import suppress
        from importlib import metadata

        packages: dict[str, str | None] = {}
        for name, choices in aliases.items():
            packages[name] = None
            for choice in choices:
                try:
                    packages[name] = metadata.version(choice)
                    break
                except metadata.PackageNotFoundError:
                    continue
        packages["distkeras_grid"] = None
        with suppress(ImportError):
            # It may have come as an archive (--py-files), without metadata.
            packages["distkeras_grid"] = importlib.import_module("distkeras_grid").__version__
        answer = {
            "executable": sys.executable,
            "host": platform.node(),
            "python": ".".join(platform.python_version_tuple()[:2]),
            "packages": packages,
        }
        yield json.dumps(answer)

    probe.__module__ = "__main__"  # cloudpickle ships functions of __main__ by value
    return probe


def compare_interpreters(driver: dict[str, Any], executor: dict[str, Any]) -> list[str]:
    """Return one sentence for each difference that matters between driver and executor.

    Examples
    --------
    >>> driver = {"executable": "/a/python", "python": "3.11", "packages": {"keras": "3.15.1"}}
    >>> executor = {"executable": "/b/python", "python": "3.11", "host": "w", "packages": {}}
    >>> compare_interpreters(driver, executor)
    []
    >>> executor["packages"] = {"keras": None}
    >>> compare_interpreters(driver, executor)[0][:60]
    'Executors on w run /b/python, which lacks keras; the driver '
    """
    here, there = driver["executable"], executor["executable"]
    where = f"Executors on {executor['host']} run {there}"
    problems = []
    if driver["python"] != executor["python"]:
        problems.append(
            f"{where} (Python {executor['python']}); the driver runs {here} (Python "
            f"{driver['python']}). Both must be the same: set spark.pyspark.python."
        )
    for name, version in executor["packages"].items():
        mine = driver["packages"].get(name, version)
        if version is None:
            problems.append(
                f"{where}, which lacks {name}; the driver runs {here}. Install it there, or point "
                "spark.pyspark.python (PYSPARK_PYTHON) to an interpreter that has it."
            )
        elif version != mine:
            problems.append(
                f"{where} with {name} {version}; the driver runs {here} with {name} {mine}. "
                "Install the same version on both."
            )
    return problems
