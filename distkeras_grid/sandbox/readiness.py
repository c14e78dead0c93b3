"""Check that a sandbox works: count its nodes, write a file, run a container."""

from __future__ import annotations

import getpass
import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import requests

from distkeras_grid.errors import SandboxError
from distkeras_grid.sandbox.daemons import Daemon, tail

# One question over HTTP; the daemons are on this machine.
ANSWER_SECONDS = 5.0
# One question about a file. The first one loads classes, which takes seconds on a busy machine.
FILE_SECONDS = 60.0
POLL_SECONDS = 0.2
CONTENT = b"The sandbox keeps what it is given.\n"


@dataclass(frozen=True)
class WebUI:
    """The daemons' pages."""

    namenode: str  # namenode and resourcemanager: ``host:port`` of each page
    resourcemanager: str

    def live_datanodes(self) -> set[str]:
        """Return the addresses of the DataNodes that the NameNode counts.

        A DataNode that was killed counts for 12 s more; one that is started again has a new
        address.
        """
        beans = self._beans("NameNodeInfo")
        return set(json.loads(beans[0]["LiveNodes"])) if beans else set()

    def in_safe_mode(self) -> bool:
        """Tell whether the NameNode refuses to write yet."""
        beans = self._beans("NameNodeInfo")
        return not beans or bool(beans[0]["Safemode"])

    def active_nodemanagers(self) -> int:
        """Return how many NodeManagers the ResourceManager counts."""
        answer = self._get(f"http://{self.resourcemanager}/ws/v1/cluster/metrics")
        return int(answer["clusterMetrics"]["activeNodes"])

    def make_homes(self, user: str) -> None:
        """Make ``/tmp``, and the home of a user."""
        client = self._files()
        with _sandbox_errors("HDFS makes no folders"):
            client.makedirs("/tmp")
            client.set_permission("/tmp", "1777")
            client.makedirs(f"/user/{user}")

    def write_and_read(self) -> None:
        """Write a file over WebHDFS, read it again and delete it."""
        client = self._files()
        path = "/tmp/.sandbox-check"
        with _sandbox_errors("HDFS does not keep a file"):
            client.write(path, CONTENT, overwrite=True)
            with client.read(path) as reader:
                content = reader.read()
            client.delete(path)
        if content != CONTENT:
            raise SandboxError(
                f"HDFS gave other bytes back than {CONTENT!r}. Received: {content!r}."
            )

    def run_container(self, deadline: float) -> None:
        """Run the smallest possible application: one container, which ends at once."""
        applications = f"http://{self.resourcemanager}/ws/v1/cluster/apps"
        with _sandbox_errors("YARN takes no application"):
            new = self._post(f"{applications}/new-application")
            identifier = new["application-id"]
            self._post(
                applications,
                {
                    "application-id": identifier,
                    "application-name": "sandbox check",
                    "application-type": "sandbox",
                    "max-app-attempts": 1,
                    "resource": {"memory": 256, "vCores": 1},
                    "am-container-spec": {"commands": {"command": "true"}},
                },
            )
        self._wait_for_end(f"{applications}/{identifier}", deadline)

    def _wait_for_end(self, url: str, deadline: float) -> None:
        """Wait until the application at an address has run its container."""
        while True:
            try:
                application = self._get(url)["app"]
            except requests.RequestException as error:
                # It may be busy with the container.
                if time.monotonic() > deadline:
                    raise SandboxError(
                        f"YARN does not tell whether it ran a container: {error}. Look at the "
                        "daemons' logs."
                    ) from error
                time.sleep(POLL_SECONDS)
                continue
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

    def _files(self) -> Any:
        from hdfs import Client

        return Client(f"http://{self.namenode}", session=self._session, timeout=FILE_SECONDS)

    @cached_property
    def _session(self) -> requests.Session:
        session = requests.Session()
        # The daemons are on this machine: no proxy, and no password of ~/.netrc.
        session.trust_env = False
        session.params = {"user.name": getpass.getuser()}
        return session

    def _beans(self, name: str) -> Any:
        query = f"Hadoop:service=NameNode,name={name}"
        return self._get(f"http://{self.namenode}/jmx", qry=query)["beans"]

    def _get(self, url: str, **query: str) -> Any:
        answer = self._session.get(url, params=query, timeout=ANSWER_SECONDS)
        answer.raise_for_status()
        return answer.json()

    def _post(self, url: str, content: Any = None) -> Any:
        answer = self._session.post(url, json=content, timeout=ANSWER_SECONDS)
        if not answer.ok:
            raise SandboxError(f"YARN refuses {url}: {answer.status_code} {answer.text[:300]}")
        return answer.json() if answer.content else None


@contextmanager
def _sandbox_errors(what: str) -> Iterator[None]:
    """Turn an error of the network, or of a daemon, into one of this package."""
    from hdfs.util import HdfsError

    try:
        yield
    except (HdfsError, requests.RequestException) as error:
        raise SandboxError(f"{what}: {error}. Look at the daemons' logs.") from error


def wait_for(
    what: str, condition: Callable[[], bool], daemons: Sequence[Daemon], deadline: float
) -> None:
    """Wait until a condition holds; ask daemons that do not answer yet again.

    `daemons`: without which it cannot come true.
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
            reason = f" ({last})" if last else ""
            raise SandboxError(f"{what} is not there in time{reason}.\n{logs}")
        time.sleep(POLL_SECONDS)
