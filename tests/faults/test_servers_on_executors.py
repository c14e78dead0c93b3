"""Parameter servers as tasks on real executors, one of which dies."""

from __future__ import annotations

import pytest

from tests.cluster import standalone_cluster
from tests.faults.counting import hosted_servers
from tests.faults.test_matrix import EPOCHS, ROWS, joined, run, wait_until

pytestmark = [pytest.mark.full, pytest.mark.faults, pytest.mark.cluster, pytest.mark.tensorflow]

SERVERS = {"num_servers": 2, "servers_on": "executors"}


@pytest.fixture
def cluster(tmp_path):
    """Two workers and two servers have a slot each; no server is left in the end."""
    with standalone_cluster(tmp_path, workers=4) as cluster:
        yield cluster
        wait_until(lambda: not hosted_servers(tmp_path), 20)


@pytest.mark.promise(
    "a worker, with the parameter servers on executors",
    "Its next attempt goes on; exact.",
)
def test_a_killed_worker_costs_nothing_with_servers_on_executors(cluster, project, tmp_path):
    result = run(cluster, project, tmp_path, fault="worker", arguments=SERVERS)
    assert result["error"] is None
    assert result["samples"] == ROWS * EPOCHS
    assert result["weights"] == [EPOCHS] * ROWS
    assert [len(joined(result, seat)) for seat in (0, 1)] == [2, 1]


@pytest.mark.parametrize(
    ("fault", "told"), [("hosted server", "exit code -9"), ("server's executor", "its task")]
)
@pytest.mark.promise(
    "a parameter server on an executor, or this executor",
    "The run ends at once with an error that names the server; nothing is left.",
)
def test_a_server_that_dies_on_an_executor_ends_the_run(cluster, project, tmp_path, fault, told):
    result = run(cluster, project, tmp_path, fault=fault, arguments=SERVERS)
    assert result["error"] == "ServerUnreachableError"
    assert "of 2 (numbers" in result["words"]
    assert told in result["words"]
    assert result["seconds_after"] < 30
