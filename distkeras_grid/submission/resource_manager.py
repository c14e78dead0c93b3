"""YARN's REST interface: what runs, in a fraction of a second and without Java.

https://hadoop.apache.org/docs/stable/hadoop-yarn/hadoop-yarn-site/ResourceManagerRest.html
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, TypeVar

import msgspec

from distkeras_grid.errors import (
    UNREADABLE,
    ApplicationNotFoundError,
    ClusterError,
    NotAuthenticatedError,
)
from distkeras_grid.submission import yarn_sites
from distkeras_grid.submission.applications import Application, check_id, state_line
from distkeras_grid.tickets import Keytab, ticket_advice
from distkeras_grid.webhdfs.addresses import Address
from distkeras_grid.webhdfs.network import open_session, root_cause

if TYPE_CHECKING:
    import requests

T = TypeVar("T")

# Seconds to connect, and between two packets of an answer.
TIMEOUTS = (5.0, 20.0)
# How long an application may take to end after it was stopped, and how often YARN is asked.
CANCEL_SECONDS = 30.0
POLL_SECONDS = 0.5
# While an application is waited for, a ResourceManager may be started again, or another take over.
SILENT_SECONDS = 60.0
# Between two lines on an application that runs, and on one that waits for its containers.
SAY_SECONDS = 15.0
SAY_WAITING_SECONDS = 4.0
_CLUSTER = "/ws/v1/cluster"


# The fields have the names in YARN's answers.
class _OneApp(msgspec.Struct):
    app: Application


class _Attempt(msgspec.Struct):
    appAttemptId: str


class YarnContainer(msgspec.Struct, frozen=True):
    """A container that runs."""

    containerId: str
    nodeHttpAddress: str  # Address of its node's page


# As ``{"apps": {"app": [...]}}``; null where there are none.
_Apps = dict[str, dict[str, list[Application]] | None]
_Attempts = dict[str, dict[str, list[_Attempt]] | None]


class ResourceManager:
    """A session with the ResourceManager's REST interface; close it at the end.

    Every method raises `ClusterError` if no ResourceManager answers, and `NotAuthenticatedError` if
    it wants a Kerberos ticket.
    """

    def __init__(self, address: Address) -> None:
        self._address = address
        self._keytab = address.kerberos if isinstance(address.kerberos, Keytab) else None
        self._session = open_session(address)

    def close(self) -> None:
        """Close the connections."""
        self._session.close()

    def application(self, identifier: str) -> Application:
        """Return the state of an application."""
        check_id(identifier)
        return self._ask(f"{_CLUSTER}/apps/{identifier}", _OneApp).app

    def applications(self, tag: str = "") -> list[Application]:
        """Return the applications that YARN remembers and whose tags hold a text, newest first."""
        answer = self._ask(f"{_CLUSTER}/apps", _Apps).get("apps") or {}
        tagged = [each for each in answer.get("app", []) if tag in each.tags]
        return sorted(tagged, key=lambda each: each.started_ms, reverse=True)

    def tagged(self, tag: str) -> Application | None:
        """Return the application with a tag, None if there is none."""
        return next(iter(self.applications(tag)), None)

    def cancel(self, identifier: str) -> Application:
        """Stop an application, and wait until it has ended; return how it ended."""
        deadline = time.monotonic() + CANCEL_SECONDS
        while not (application := self.application(identifier)).ended:
            if time.monotonic() > deadline:
                raise ClusterError(
                    f"{identifier} has not ended {CANCEL_SECONDS:.0f} s after it was stopped. Its "
                    f"state: {application.state}. Ask again: distkeras-grid status {identifier}."
                )
            try:
                self._ask(
                    f"{_CLUSTER}/apps/{identifier}/state", dict[str, str], {"state": "KILLED"}
                )
            except NotAuthenticatedError as error:
                # It shows the application, and yet may take no orders, as with a plain page on a
                # cluster with Kerberos.
                raise ClusterError(
                    f"YARN's page does not stop {identifier}: {error} Stop it by Hadoop's own "
                    f"command: yarn application -kill {identifier}."
                ) from error
            time.sleep(POLL_SECONDS)
        return application

    def containers(self, identifier: str) -> list[YarnContainer]:
        """Return the containers of an application that run now, in the order of their ids."""
        path = f"{_CLUSTER}/apps/{identifier}/appattempts"
        attempts = (self._ask(path, _Attempts).get("appAttempts") or {}).get("appAttempt")
        if not attempts:
            return []
        path += f"/{attempts[-1].appAttemptId}/containers"
        containers = self._ask(path, dict[str, list[YarnContainer]]).get("container", [])
        return sorted(containers, key=lambda each: each.containerId)

    def fetch(self, url: str, **query: str) -> bytes:
        """Return the content at an address of a node."""
        answer = self._get(url, query, accept="*/*")
        if answer.status_code != 200:
            raise ClusterError(f"{url} answers with status {answer.status_code}.")
        return answer.content

    def _ask(self, path: str, kind: type[T], put: dict[str, str] | None = None) -> T:
        """Ask one ResourceManager after the other, or tell it something; return the answer."""
        problems = []
        for url in self._address.urls:
            try:
                answer = self._get(f"{url}{path}", put=put)
                return _decoded(answer, kind, self._keytab)
            except ApplicationNotFoundError:
                raise
            except ClusterError as error:
                problems.append(str(error))
        raise ClusterError(
            f"YARN's page does not tell about its applications: {'; '.join(problems)} Check "
            "yarn-site.xml in HADOOP_CONF_DIR, and that the ResourceManager runs."
        )

    def _get(
        self,
        url: str,
        query: dict[str, str] | None = None,
        *,
        accept: str = "application/json",
        put: dict[str, str] | None = None,
    ) -> requests.Response:
        headers = {"Accept": accept}
        if put is not None:
            headers["Content-Type"] = "application/json"
        with _translated(url, self._keytab):
            return self._session.request(
                "GET" if put is None else "PUT",
                url,
                params=query,
                json=put,
                timeout=TIMEOUTS,
                headers=headers,
            )


@contextmanager
def resource_manager(keytab: Keytab | None) -> Iterator[ResourceManager]:
    """Open the ResourceManager of ``HADOOP_CONF_DIR``, with tickets of a keytab if given."""
    with closing(ResourceManager(yarn_sites.find_resourcemanager(keytab))) as manager:
        yield manager


def wait(
    manager: ResourceManager,
    identifier: str,
    say: Callable[[str], object],
    driver: Callable[[], str] = str,
    clock: Callable[[], float] = time.monotonic,
) -> Application:
    """Wait until an application ends; report its state when it changes, and every few seconds.

    While it runs, a line every 15 s is enough, with what `driver` returns: its last line. There is
    no deadline, because a job may take any time; a ResourceManager that does not answer for a
    minute is an error.
    """
    began = answered = clock()
    last, state = -SAY_SECONDS, ""
    while True:
        try:
            application = manager.application(identifier)
        except ApplicationNotFoundError:
            raise
        except ClusterError:
            if clock() - answered > SILENT_SECONDS:
                raise
            time.sleep(POLL_SECONDS)
            continue
        answered = clock()
        passed = answered - began
        pause = SAY_WAITING_SECONDS if application.waits else SAY_SECONDS
        if application.state != state or passed - last >= pause:
            last, state = passed, application.state
            line = driver() if state == "RUNNING" else ""
            say(state_line(application, passed) + (f": {line}" if line else ""))
        if application.ended:
            return application
        time.sleep(POLL_SECONDS)


@contextmanager
def _translated(url: str, keytab: Keytab | None) -> Iterator[None]:
    """Turn an error of `requests` into one of this package."""
    import requests

    try:
        yield
    except requests.RequestException as error:
        if "SPNEGO" in type(error).__name__:
            raise _stranger(url, "no ticket", keytab) from error
        raise ClusterError(f"{url} cannot be reached ({root_cause(error)}).") from error


def _stranger(url: str, why: str, keytab: Keytab | None) -> NotAuthenticatedError:
    return NotAuthenticatedError(f"{url} wants to know who asks ({why}). {ticket_advice(keytab)}")


def _decoded(answer: requests.Response, kind: type[T], keytab: Keytab | None) -> T:
    if answer.status_code == 404 and b"NotFoundException" in answer.content:
        raise ApplicationNotFoundError(
            f"YARN at {answer.url.partition('/ws/')[0]} does not know this application, or has "
            "forgotten it. Check the id and HADOOP_CONF_DIR."
        )
    if answer.status_code in (401, 403):
        raise _stranger(answer.url, str(answer.status_code), keytab)
    try:
        return msgspec.json.decode(answer.content, type=kind)
    except UNREADABLE as error:
        # A standby ResourceManager answers with a page if none is active.
        raise ClusterError(
            f"{answer.url} answers with status {answer.status_code}, not as YARN does ({error})."
        ) from error
