"""YARN over REST: what is decoded, what is refused, and which ResourceManager is asked."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from distkeras_grid.errors import (
    ApplicationNotFoundError,
    ClusterError,
    ConfigurationError,
    NotAuthenticatedError,
)
from distkeras_grid.submission.container_logs import RunningLogs, outputs_of_driver
from distkeras_grid.submission.resource_manager import ResourceManager
from distkeras_grid.tickets import Keytab
from distkeras_grid.webhdfs import network
from distkeras_grid.webhdfs.addresses import Address
from tests.distkeras_grid.submission.pages import FAILED, MASTER, RUNNING, app, pages, yarn_pages


def manager_at(*urls: str) -> closing[ResourceManager]:
    return closing(ResourceManager(Address(urls, "me")))


@pytest.fixture(scope="module")
def page() -> Iterator[str]:
    with yarn_pages() as url:
        yield url


@pytest.fixture
def nobody() -> Iterator[str]:
    """An address at which nobody listens, and which no other test can take."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{unused.getsockname()[1]}"


def test_an_application_that_has_failed(page: str):
    with manager_at(page) as manager:
        found = manager.application(FAILED)
    assert (found.state, found.final, found.diagnostics) == ("FINISHED", "FAILED", "why\n")
    assert (found.containers, found.memory_mb, found.started_ms) == (-1, -1, 2000)


def test_the_list_begins_with_the_newest_and_can_be_that_of_a_tag(page: str):
    with manager_at(page) as manager:
        assert [each.id for each in manager.applications("distkeras-grid-")] == [RUNNING, FAILED]
        assert len(manager.applications()) == 3


def test_what_yarn_does_not_know_and_what_is_no_id(page: str):
    with manager_at(page) as manager:
        with pytest.raises(ApplicationNotFoundError):
            manager.application("application_1_0001")
        with pytest.raises(ConfigurationError):
            manager.application("../apps")


def test_an_application_is_stopped(page: str):
    going = {f"/ws/v1/cluster/apps/{RUNNING}": {"app": app(RUNNING)}}
    with yarn_pages(going) as url, manager_at(url) as manager:
        assert manager.cancel(RUNNING).final == "KILLED"
        assert manager.cancel(RUNNING).ended
    # A page that takes no orders.
    with manager_at(page) as manager, pytest.raises(ClusterError, match="does not stop"):
        manager.cancel(RUNNING)


def test_where_one_does_not_answer_another_one_does(page: str, nobody: str):
    with manager_at(nobody, page) as manager:
        assert manager.application(RUNNING).state == "RUNNING"


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        ((200, "<html>This is standby RM.</html>"), ClusterError),
        ((200, {"apps": {"app": 1}}), ClusterError),
        ((401, "who?"), NotAuthenticatedError),
        ((403, "who?"), NotAuthenticatedError),
    ],
)
def test_what_is_not_yarn_or_wants_a_ticket_is_named(answer: object, error: type[Exception]):
    with (
        yarn_pages({"/ws/v1/cluster/apps": answer}) as url,
        manager_at(url) as manager,
        pytest.raises(error, match=url),
    ):
        manager.applications()


def test_a_keytab_that_opens_no_page_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(network, "ticket_authentication", lambda _: None)
    keytab = Keytab("ada@GRID", "/home/ada/ada.keytab")
    with (
        yarn_pages({"/ws/v1/cluster/apps": (401, "who?")}) as url,
        closing(ResourceManager(Address((url,), "me", keytab))) as manager,
        pytest.raises(NotAuthenticatedError, match=f"{keytab.file}.*{keytab.principal}"),
    ):
        manager.applications()


def test_no_one_answers(nobody: str):
    with (
        manager_at(nobody) as manager,
        pytest.raises(ClusterError, match=f"{nobody}.*that the ResourceManager runs"),
    ):
        manager.applications()


def test_no_application_has_run_yet():
    with yarn_pages({"/ws/v1/cluster/apps": {"apps": None}}) as url, manager_at(url) as manager:
        assert manager.applications() == []


def test_the_logs_of_one_that_runs(page: str):
    with manager_at(page) as manager:
        logs = RunningLogs(manager, RUNNING, pytest.fail)
        assert [(each.name, each.size) for each in logs.files()] == [("stdout", 6), ("x", 0)]
        (written,) = outputs_of_driver(logs)
        assert written.container == MASTER
        assert logs.read(written) == "a\nb\nc\n"
        assert logs.read(written, 2) == "c\n"


@contextmanager
def with_executor_at(address: str, master: str) -> Iterator[ResourceManager]:
    """A YARN where an application has an executor at an address, and its master at another one."""
    known = pages(master.removeprefix("http://"))
    (path,) = (path for path in known if path.endswith("/containers"))
    executor = MASTER.replace("_000001", "_000002")
    there = {"containerId": executor, "nodeHttpAddress": address.removeprefix("http://")}
    known[path]["container"].append(there)
    with yarn_pages(known) as url, manager_at(url) as manager:
        yield manager


def test_a_node_that_does_not_answer_hides_no_log_of_others(page: str, nobody: str):
    """An executor that has just ended, or lost its host, is often why somebody looks."""
    said: list[str] = []
    with with_executor_at(nobody, master=page) as manager:
        logs = RunningLogs(manager, RUNNING, said.append)
        assert {each.container for each in logs.files()} == {MASTER}
    (line,) = said
    assert nobody in line


def test_where_no_node_answers_that_is_an_error(nobody: str):
    with (
        with_executor_at(nobody, master=nobody) as manager,
        pytest.raises(ClusterError, match=nobody),
    ):
        RunningLogs(manager, RUNNING, pytest.fail).files()
