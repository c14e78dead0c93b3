"""What can be checked in a session before work starts; each check returns a finding.

Each check is a function of plain values. `distkeras-grid doctor` and every training call them. A
bad finding would end the run or make it useless. A warning means that it may be slow or fail.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from distkeras_grid.errors import (
    ClusterError,
    ConfigurationError,
    GridError,
    NotEnoughSlotsError,
    StorageError,
)
from distkeras_grid.spark.session import local_cores

if TYPE_CHECKING:
    from distkeras_grid.spark.storage import Storage

#: Returns a Spark setting, None if it is not set.
Setting = Callable[[str], str | None]


class CheckLevel(StrEnum):
    """How serious a finding is."""

    OK = "ok"
    WARN = "warn"
    BAD = "bad"


@dataclass(frozen=True)
class CheckResult:
    """The result of one check."""

    subject: str  # What was checked, in one or two words
    level: CheckLevel  # How serious it is
    text: str  # What was found and, unless all is well, what to change
    error: type[GridError] = ConfigurationError  # The error that a bad finding raises before a run


def raise_or_collect(findings: Iterable[CheckResult]) -> list[str]:
    """Raise the first bad finding; return what the warnings say."""
    results = list(findings)
    for finding in results:
        if finding.level is CheckLevel.BAD:
            raise finding.error(finding.text)
    return [finding.text for finding in results if finding.level is CheckLevel.WARN]


def as_check_result(subject: str, check: Callable[[], str]) -> CheckResult:
    """Return the result of a check, or the `GridError` that it raises, as a finding."""
    try:
        return CheckResult(subject, CheckLevel.OK, check())
    except GridError as error:
        return CheckResult(subject, CheckLevel.BAD, str(error), type(error))


def check_slots(slots: int, workers: int | None, *, together: bool = True) -> CheckResult:
    """Look for a task slot for each worker.

    `together`: whether work can begin only when all of them run. Otherwise further slots may come
    later.
    """
    if workers is None and slots > 0:
        text = f"{slots} task slots: num_workers is {slots} by default"
        return CheckResult("slots", CheckLevel.OK, text)
    workers = workers or 1
    if workers <= slots:
        return CheckResult("slots", CheckLevel.OK, f"{slots} task slots for {workers} workers")
    return CheckResult(
        "slots",
        CheckLevel.BAD if together or slots <= 0 else CheckLevel.WARN,
        f"All workers run at the same time, so each needs a task slot. Received: {workers} workers "
        f"and {slots} task slots. Lower num_workers, or raise spark.executor.instances x "
        "spark.executor.cores / spark.task.cpus (submit: --executors, --executor-cores; local "
        "mode: local[N,4]).",
        NotEnoughSlotsError,
    )


def check_scheduling(setting: Setting, *, barrier: bool = False) -> list[CheckResult]:
    """Check the settings by which Spark itself starts and ends executors and tasks.

    `barrier`: whether tasks share one model, in a barrier stage, which Spark starts on a fixed
    number of executors only.
    """
    if setting("spark.speculation") == "true":
        speculation = CheckResult(
            "speculation",
            CheckLevel.BAD,
            "spark.speculation is on: Spark would start a second copy of a slow worker, and the "
            "two would replace each other again and again. Set spark.speculation=false.",
        )
    else:
        speculation = CheckResult("speculation", CheckLevel.OK, "spark.speculation is off")
    # A local master has no executors, whatever is set.
    dynamic = local_cores(setting("spark.master") or "") is None
    if dynamic and setting("spark.dynamicAllocation.enabled") == "true":
        allocation = CheckResult(
            "allocation",
            CheckLevel.BAD if barrier else CheckLevel.WARN,
            "spark.dynamicAllocation.enabled is on: executors come and go, so the number of slots "
            "may change, and a run waits for executors when it starts; tasks that share one model "
            "do not start at all. Set it to false, and set spark.executor.instances to the "
            "executors that the workers need.",
        )
    else:
        allocation = CheckResult("allocation", CheckLevel.OK, "spark.dynamicAllocation is off")
    return [speculation, allocation]


def check_gpus(setting: Setting, *, sharing: bool = False) -> list[CheckResult]:
    """Check how many GPUs of its executor a task gets; no finding if executors have none."""
    amount = float(setting("spark.task.resource.gpu.amount") or 0)
    gpus = float(setting("spark.executor.resource.gpu.amount") or 0)
    if amount <= 0:
        if gpus <= 0:
            return []
        text = (
            f"executors have {gpus:g} GPUs, but tasks get none, so workers train on CPUs. Set "
            "spark.task.resource.gpu.amount=1."
        )
        return [CheckResult("gpu", CheckLevel.WARN, text)]
    if amount < 1 and not sharing:
        text = (
            f"spark.task.resource.gpu.amount is {amount:g}, so {int(1 / amount)} workers would "
            "share a GPU, its memory and its time. Set it to 1, or allow it: gpu_sharing=True."
        )
        return [CheckResult("gpu", CheckLevel.BAD, text)]
    if gpus > max(amount, 1) and setting("spark.python.worker.reuse") != "false":
        text = (
            f"an executor has {gpus:g} GPUs, and a Python process that is reused keeps the GPU of "
            "its first task. Set spark.python.worker.reuse=false."
        )
        return [CheckResult("gpu", CheckLevel.BAD, text)]
    return [CheckResult("gpu", CheckLevel.OK, f"each worker gets {amount:g} GPU of its executor")]


#: Settings by which Spark encrypts what driver and executors send each other.
ENCRYPTION = (
    "spark.network.crypto.enabled",
    "spark.authenticate.enableSaslEncryption",
    "spark.ssl.rpc.enabled",
)


def check_encryption(setting: Setting, driver: str) -> CheckResult:
    """Check how the key of a run, which Spark sends with the tasks, reaches the executors."""
    if name := next((name for name in ENCRYPTION if setting(name) == "true"), None):
        text = f"Spark encrypts its own traffic: {name}=true"
        return CheckResult("encryption", CheckLevel.OK, text)
    if _is_loopback(driver):
        return CheckResult("encryption", CheckLevel.OK, "Spark's traffic does not leave this host")
    # Spark's own cipher, AES/CTR/NoPadding, does not protect what it encrypts from changes.
    return CheckResult(
        "encryption",
        CheckLevel.WARN,
        "Spark sends keys of runs, models and rows unencrypted. If others can read packets in this "
        "network, set spark.authenticate=true, spark.network.crypto.enabled=true, "
        "spark.network.crypto.cipher=AES/GCM/NoPadding and "
        "spark.network.crypto.authEngineVersion=2.",
    )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def check_hadoop(
    master: str, folder: str | None, files: Iterable[str], *, submitted: bool = False
) -> CheckResult:
    """Check the configuration by which Spark finds HDFS and YARN.

    `folder`: value of ``HADOOP_CONF_DIR`` or, without it, of ``YARN_CONF_DIR``.
    """
    if submitted and folder is None:
        return CheckResult(
            "hadoop", CheckLevel.OK, "Spark sent the submitting machine's configuration"
        )
    needed = ["core-site.xml", "yarn-site.xml"] if master.startswith("yarn") else []
    present = sorted(name for name in files if name.endswith("-site.xml"))
    missing = [name for name in needed if name not in present]
    if folder is None and needed:
        text = (
            "HADOOP_CONF_DIR is not set, and --master yarn needs it. Set it to the folder that "
            f"contains {' and '.join(needed)}."
        )
        return CheckResult("hadoop", CheckLevel.BAD, text, ClusterError)
    if missing:
        text = (
            f"HADOOP_CONF_DIR={folder} has no {' and no '.join(missing)} that can be read. Copy "
            "the cluster's configuration there, or name another folder."
        )
        return CheckResult("hadoop", CheckLevel.BAD, text, ClusterError)
    if folder is None:
        text = "HADOOP_CONF_DIR is not set: paths without a scheme are on this machine"
        return CheckResult("hadoop", CheckLevel.OK, text)
    return CheckResult(
        "hadoop", CheckLevel.OK, f"HADOOP_CONF_DIR={folder}: {', '.join(present) or 'empty'}"
    )


def check_storage(storage: Storage, uri: str) -> str:
    """Write, read and delete a small file below `uri`, which need not exist yet."""
    where = storage.resolve(uri).rstrip("/")
    # Stops below the root, which always exists: hdfs://host:port/a, file:/a.
    while re.search(r":(//[^/]*)?/[^/]", where) and not storage.exists(where):
        where = where.rpartition("/")[0]
    probe = storage.hidden_beside(f"{where}/doctor")
    content = "written by distkeras-grid doctor"
    try:
        storage.write_text(probe, content)
        read = storage.read_text(probe)
    except GridError as error:
        storage.discard(probe, error)
        raise
    storage.delete(probe)
    if read != content:
        raise StorageError(
            f"A file in {where} has other bytes than were written. Check the file system."
        )
    free = storage.free_space(f"{where}/")
    return f"{where} can be written and read, {free / 1e9:.3g} GB free"


def describe_executors(answers: list[dict[str, Any]], driver: str) -> str:
    """Describe what `check_executors` found."""
    first = answers[0]
    packages = ", ".join(f"{name} {version}" for name, version in first["packages"].items())
    places = {a["host"]: a["executable"] for a in answers}
    hosts = ", ".join(h if e == driver else f"{h} ({e})" for h, e in sorted(places.items()))
    return f"the same on the driver and on {hosts}: Python {first['python']}, {packages}"
