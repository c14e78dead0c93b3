"""Check that a sandbox works: ask its daemons' web pages."""

from __future__ import annotations

import getpass
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import requests

from distkeras_grid.errors import SandboxError

# One question over HTTP; the daemons are on this machine.
ANSWER_SECONDS = 5.0
# One question about a file. The first one loads classes, which takes seconds on a busy machine.
FILE_SECONDS = 60.0
POLL_SECONDS = 0.2


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
        beans = self._namenode()
        return set(json.loads(beans[0]["LiveNodes"])) if beans else set()

    def in_safe_mode(self) -> bool:
        """Tell whether the NameNode refuses to write yet."""
        beans = self._namenode()
        return not beans or bool(beans[0]["Safemode"])

    def active_nodemanagers(self) -> int:
        """Return how many NodeManagers the ResourceManager counts."""
        answer = self._get(f"http://{self.resourcemanager}/ws/v1/cluster/metrics")
        return int(answer["clusterMetrics"]["activeNodes"])

    def make_homes(self, user: str) -> None:
        """Make ``/tmp``, and the home of a user."""
        from hdfs.util import HdfsError

        client = self._files()
        try:
            client.makedirs("/tmp")
            client.set_permission("/tmp", "1777")
            client.makedirs(f"/user/{user}")
        except (HdfsError, requests.RequestException) as error:
            raise SandboxError(
                f"HDFS makes no folders: {error}. Look at the daemons' logs."
            ) from error

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

    def _namenode(self) -> Any:
        query = "Hadoop:service=NameNode,name=NameNodeInfo"
        return self._get(f"http://{self.namenode}/jmx", qry=query)["beans"]

    def _get(self, url: str, **query: str) -> Any:
        answer = self._session.get(url, params=query, timeout=ANSWER_SECONDS)
        answer.raise_for_status()
        return answer.json()


def wait_for(
    what: str, condition: Callable[[], bool], check: Callable[[], None], deadline: float
) -> None:
    """Wait until a condition holds; ask daemons that do not answer yet again.

    `check`: raises an error if a daemon has ended without which the condition cannot come true.
    """
    last: Exception | None = None
    while True:
        check()
        try:
            if condition():
                return
        except (requests.RequestException, KeyError) as error:
            last = error
        if time.monotonic() > deadline:
            reason = f" ({last})" if last else ""
            raise SandboxError(f"{what} is not there in time{reason}. Look at the daemons' logs.")
        time.sleep(POLL_SECONDS)
