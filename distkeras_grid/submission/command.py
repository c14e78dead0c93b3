"""The command line of ``spark-submit``: a pure function of what is submitted."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from distkeras_grid.engine.registry import VARIABLE
from distkeras_grid.errors import ConfigurationError
from distkeras_grid.spark.local_names import LOCALE
from distkeras_grid.spark.memory import driver_overhead_mb, executor_overhead_mb
from distkeras_grid.submission.environment import LINK, PYTHON
from distkeras_grid.submission.jvm import kerberos_settings
from distkeras_grid.tickets import Keytab, keytab_of

DeployMode = Literal["client", "cluster"]
CONTAINER_PYTHON = f"./{LINK}/{PYTHON}"
# How many executors may be lost in an hour, for each slot. A worker that trains something between
# its losses needs longer than 36 seconds to be started again.
EXECUTOR_FAILURES = 100
TAGS = "spark.yarn.tags"
#: Settings that a user's --conf cannot change, and what to do instead.
SET_BY_SUBMIT = {
    "spark.master": "Give --master",
    "spark.submit.deployMode": "Give --deploy-mode",
    "spark.submit.pyFiles": "Give --py-files",
    "spark.archives": "Leave it out: it is the environment",
    "spark.yarn.submit.waitAppCompletion": "Give --detach, or leave it out",
}


@dataclass(frozen=True)
class Submission:
    """A program, where it runs, and what it needs."""

    program: str  # Path of the Python file that Spark starts
    arguments: Sequence[str]  # Arguments of the program
    environment: str  # Path of the environment archive, as nodes reach it
    py_files: Sequence[str] = ()  # Zip files and modules that the program imports
    name: str = "distkeras-grid"  # Name of the application
    master: str = "yarn"  # ``"yarn"`` or ``"spark://host:port"``
    deploy_mode: DeployMode = "client"  # Where the driver runs: here, or in a container
    # executors and executor_cores: Number of executors, and of tasks that each runs at once
    executors: int = 2
    executor_cores: int = 1
    # executor_memory and driver_memory: Heaps of the JVMs, such as ``"1g"``. Python's memory is not
    # part of them.
    executor_memory: str = "1g"
    driver_memory: str = "1g"
    queue: str | None = None  # queue and principal and keytab: Settings of YARN and Kerberos
    principal: str | None = None
    keytab: str | None = None
    tag: str = ""  # Tag by which the application is found again in YARN
    backend: str = "tensorflow"  # The backend of Keras in all processes of the job
    # The user's Spark settings, which override all others
    settings: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("executors", "executor_cores"):
            if (value := getattr(self, name)) < 1:
                raise ConfigurationError(
                    f"--{name.replace('_', '-')} must be at least 1. Received: {value}."
                )
        for name in ("executor_memory", "driver_memory"):
            if not re.fullmatch(r"[1-9]\d*[mgt]", value := getattr(self, name)):
                raise ConfigurationError(
                    f"--{name.replace('_', '-')} must be a size such as 512m or 2g. "
                    f"Received: {value!r}."
                )
        keytab_of(self.principal, self.keytab)
        if not self.on_yarn and not self.master.startswith("spark://"):
            raise ConfigurationError(
                "--master must be yarn, or spark://host:port of a standalone cluster. Received: "
                f"{self.master!r}. A job on this machine needs no submission; run "
                "distkeras-grid VERB."
            )
        if not self.on_yarn and self.deploy_mode == "cluster":
            raise ConfigurationError(
                "A standalone cluster runs no Python driver in a container. Leave out "
                "--deploy-mode cluster."
            )

    @property
    def on_yarn(self) -> bool:
        """Whether YARN runs it."""
        return self.master == "yarn"

    @property
    def in_cluster(self) -> bool:
        """Whether the driver runs in a container."""
        return self.deploy_mode == "cluster"

    @property
    def client_settings(self) -> dict[str, str]:
        """The settings that this machine's own access to the cluster needs."""
        own = ("spark.hadoop.", "spark.kerberos.")
        named = {name: value for name, value in self.settings.items() if name.startswith(own)}
        return {**kerberos_settings(keytab_of(self.principal, self.keytab)), **named}

    @property
    def slots(self) -> int | None:
        """Most tasks that can run at once; None if the user's settings do not limit them.

        Examples
        --------
        >>> settings = {"spark.task.cpus": "2"}
        >>> Submission("a.py", [], "", executors=3, executor_cores=4, settings=settings).slots
        6
        """
        known = {**settings(self, ""), **self.settings}
        if known["spark.dynamicAllocation.enabled"].lower() != "false":
            return None
        try:
            cores = int(known["spark.executor.cores"])
            tasks = cores // int(known.get("spark.task.cpus", 1))
            if self.on_yarn:
                return int(known["spark.executor.instances"]) * tasks
            return int(known["spark.cores.max"]) // cores * tasks
        except (ValueError, ZeroDivisionError):
            # Spark refuses them in words of its own.
            return None


def command_line(submission: Submission, *, spark_submit: str, python: str) -> list[str]:
    """Return the arguments that submit a program."""
    words = [spark_submit, "--master", submission.master, "--deploy-mode", submission.deploy_mode]
    words += ["--archives", f"{submission.environment}#{LINK}"]
    if submission.py_files:
        words += ["--py-files", ",".join(submission.py_files)]
    # All others are settings: spark-submit would let a flag win over the user's --conf.
    merged = {**settings(submission, python), **submission.settings}
    if submission.on_yarn and (tags := submission.settings.get(TAGS)):
        # By its own tag `submit` finds the application again.
        merged[TAGS] = f"{submission.tag},{tags}"
    for name, value in merged.items():
        words += ["--conf", f"{name}={value}"]
    return [*words, submission.program, *submission.arguments]


def settings(submission: Submission, python: str) -> dict[str, str]:
    """Return the Spark settings of a submission, without the user's."""
    executors, cores = submission.executors, submission.executor_cores
    common = {
        "spark.app.name": submission.name,
        "spark.executor.cores": str(cores),
        "spark.executor.memory": submission.executor_memory,
        "spark.driver.memory": submission.driver_memory,
        **kerberos_settings(keytab_of(submission.principal, submission.keytab)),
        "spark.pyspark.python": CONTAINER_PYTHON,
        # Only what is shipped runs, and no packages from the home of a node's user.
        "spark.executorEnv.PYTHONNOUSERSITE": "1",
        f"spark.executorEnv.{VARIABLE}": submission.backend,
        # Daemons of a cluster run in the locale C, in which Java sees no name with an umlaut.
        "spark.executorEnv.LC_ALL": LOCALE,
        # A run holds the executors it asked for until it ends.
        "spark.dynamicAllocation.enabled": "false",
    }
    if not submission.in_cluster:
        common["spark.pyspark.driver.python"] = python
    if submission.on_yarn:
        return {**common, **_of_yarn(submission)}
    return {**common, "spark.cores.max": str(executors * cores)}


def _of_yarn(submission: Submission) -> dict[str, str]:
    slots = submission.executors * submission.executor_cores
    beside_jvm = executor_overhead_mb(slots=submission.executor_cores)
    ours = {
        "spark.executor.instances": str(submission.executors),
        # Spark's default, a tenth of the heap, is less than TensorFlow needs.
        "spark.executor.memoryOverhead": f"{beside_jvm}m",
        # A run itself decides when a worker has failed too often, however many executors it lost
        # before. So Spark's own limit, by default two deaths for each executor in the life of the
        # application, only ends an application whose executors never come up.
        "spark.executor.maxNumFailures": str(EXECUTOR_FAILURES * slots),
        "spark.executor.failuresValidityInterval": "1h",
        TAGS: submission.tag,
    }
    if submission.queue is not None:
        ours["spark.yarn.queue"] = submission.queue
    if not submission.in_cluster:
        return ours
    return {
        **ours,
        "spark.driver.memoryOverhead": f"{driver_overhead_mb(workers=slots)}m",
        # Another attempt needs a checkpoint to go on from; the user asks for it.
        "spark.yarn.maxAppAttempts": "1",
        "spark.yarn.appMasterEnv.PYSPARK_PYTHON": CONTAINER_PYTHON,
        "spark.yarn.appMasterEnv.PYTHONNOUSERSITE": "1",
        f"spark.yarn.appMasterEnv.{VARIABLE}": submission.backend,
        "spark.yarn.appMasterEnv.LC_ALL": LOCALE,
        # `submit` itself waits, and asks YARN for the application's state.
        "spark.yarn.submit.waitAppCompletion": "false",
    }


def keytab_in(settings: Mapping[str, str]) -> Keytab | None:
    """Return the keytab of a submission's own access, also one that ``--conf`` has given."""
    principal, file = (settings.get(f"spark.kerberos.{name}") for name in ("principal", "keytab"))
    return Keytab(principal, file) if principal and file else None


def parse_settings(texts: Sequence[str]) -> dict[str, str]:
    """Turn ``NAME=VALUE`` into Spark settings.

    Examples
    --------
    >>> parse_settings(["spark.ui.enabled=false", "spark.executorEnv.A=b=c"])
    {'spark.ui.enabled': 'false', 'spark.executorEnv.A': 'b=c'}
    """
    settings = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator or not name.startswith("spark."):
            raise ConfigurationError(f"--conf takes spark.NAME=VALUE. Received: {text!r}.")
        if (other := SET_BY_SUBMIT.get(name)) is not None:
            raise ConfigurationError(f"submit itself sets {name}. Received: {text!r}. {other}.")
        settings[name] = value
    return settings
