"""Check that a sandbox works: count its nodes, write a file, run a container."""

from __future__ import annotations

import getpass
import json
import time
from collections.abc import Callable, Sequence
from typing import Any

import requests

from distkeras_grid.errors import SandboxError
from distkeras_grid.sandbox.daemons import Daemon, tail

# One question over HTTP; the daemons are on this machine.
ANSWER_SECONDS = 5.0
POLL_SECONDS = 0.2
CONTENT = b"The sandbox keeps what it is given.\n"


def live_datanodes(namenode: str) -> set[str]:
    """Return the addresses of the DataNodes that a NameNode counts.

    A DataNode that was killed counts for 12 s more; one that is started again has a new address.

    Parameters
    ----------
    namenode : str
        ``host:port`` of its page.
    """
    beans = _beans(namenode, "NameNodeInfo")
    return set(json.loads(beans[0]["LiveNodes"])) if beans else set()


def in_safe_mode(namenode: str) -> bool:
    """Tell whether a NameNode refuses to write yet."""
    beans = _beans(namenode, "NameNodeInfo")
    return not beans or bool(beans[0]["Safemode"])


def active_nodemanagers(resourcemanager: str) -> int:
    """Return how many NodeManagers a ResourceManager counts.

    Parameters
    ----------
    resourcemanager : str
        ``host:port`` of its page.
    """
    answer = _get(f"http://{resourcemanager}/ws/v1/cluster/metrics")
    return int(answer["clusterMetrics"]["activeNodes"])


def write_and_read(namenode: str) -> None:
    """Write a file over WebHDFS, read it again and delete it.

    Raises
    ------
    SandboxError
        If another content comes back, or the NameNode refuses.
    """
    from hdfs import InsecureClient
    from hdfs.util import HdfsError

    client = InsecureClient(f"http://{namenode}", user=getpass.getuser())
    path = "/tmp/.sandbox-check"
    try:
        client.write(path, CONTENT, overwrite=True)
        with client.read(path) as reader:
            content = reader.read()
        client.delete(path)
    except (HdfsError, requests.RequestException) as error:
        raise SandboxError(
            f"HDFS does not keep a file: {error}. Look at the daemons' logs."
        ) from error
    if content != CONTENT:
        raise SandboxError(f"HDFS gave other bytes back than {CONTENT!r}. Received: {content!r}.")


def run_container(resourcemanager: str, deadline: float) -> None:
    """Run the smallest possible application: one container, which ends at once.

    Raises
    ------
    SandboxError
        If it does not run by the deadline, with YARN's diagnostics.
    """
    applications = f"http://{resourcemanager}/ws/v1/cluster/apps"
    who = {"user.name": getpass.getuser()}
    new = _post(f"{applications}/new-application", who)
    identifier = new["application-id"]
    _post(
        applications,
        who,
        {
            "application-id": identifier,
            "application-name": "sandbox check",
            "application-type": "sandbox",
            "max-app-attempts": 1,
            "resource": {"memory": 256, "vCores": 1},
            "am-container-spec": {"commands": {"command": "true"}},
        },
    )
    while True:
        application = _get(f"{applications}/{identifier}")["app"]
        diagnostics = str(application.get("diagnostics", ""))
        # A master that ends without a word counts as failed; its exit code is what matters.
        if "exitCode: 0" in diagnostics:
            return
        if application["state"] in ("FAILED", "KILLED", "FINISHED"):
            raise SandboxError(f"YARN ran no container. It says: {diagnostics}")
        if time.monotonic() > deadline:
            raise SandboxError(
                f"YARN ran no container in time. The application is {application['state']}: "
                f"{diagnostics}"
            )
        time.sleep(POLL_SECONDS)


def wait_for(
    what: str, condition: Callable[[], bool], daemons: Sequence[Daemon], deadline: float
) -> None:
    """Wait until a condition holds; ask daemons that do not answer yet again.

    Parameters
    ----------
    what : str
        What is waited for, for the error.
    condition : callable
        Asks.
    daemons : sequence of Daemon
        Without which it cannot come true.
    deadline : float
        On the clock of ``time.monotonic``.

    Raises
    ------
    SandboxError
        If a daemon ends, or the deadline passes; with the ends of their logs.
    """
    last: Exception | None = None
    while True:
        for daemon in daemons:
            daemon.check()
        try:
            if condition():
                return
        except (requests.RequestException, KeyError) as error:
            last = error
        if time.monotonic() > deadline:
            logs = "\n".join(tail(daemon.log) for daemon in daemons)
            said = f" ({last})" if last else ""
            raise SandboxError(f"{what} is not there in time{said}.\n{logs}")
        time.sleep(POLL_SECONDS)


def _beans(namenode: str, name: str) -> Any:
    query = f"Hadoop:service=NameNode,name={name}"
    return _get(f"http://{namenode}/jmx", qry=query)["beans"]


def _get(url: str, **query: str) -> Any:
    answer = requests.get(url, params=query, timeout=ANSWER_SECONDS)
    answer.raise_for_status()
    return answer.json()


def _post(url: str, query: dict[str, str], content: Any = None) -> Any:
    answer = requests.post(url, params=query, json=content, timeout=ANSWER_SECONDS)
    if not answer.ok:
        raise SandboxError(f"YARN refuses {url}: {answer.status_code} {answer.text[:300]}")
    return answer.json() if answer.content else None
