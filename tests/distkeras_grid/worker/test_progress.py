"""What a worker tells of itself, and the thread that does."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from distkeras_grid.errors import FencedError, ServerUnreachableError
from distkeras_grid.rows import RowBlock
from distkeras_grid.worker.progress import HeartbeatThread, Progress, log_of


class Client:
    """Remembers what it was told; it may raise first."""

    def __init__(self, *errors):
        self.errors, self.told, self.often = [*errors], [], threading.Event()

    def beat(self, activity, done, host, log):  # noqa: ARG002
        self.told.append((activity, done))
        if len(self.told) > 3:
            self.often.set()
        if self.errors:
            raise self.errors.pop(0)
        return True


def test_signs_of_life_go_on_though_the_server_was_gone_for_a_while():
    client, progress = Client(ServerUnreachableError("gone")), Progress()
    progress.begin("importing")
    with HeartbeatThread(client, progress, seconds=0.001) as heartbeat:
        assert client.often.wait(5)
    assert set(client.told) == {("importing", 0)}
    assert not heartbeat._thread.is_alive()


def test_who_has_lost_its_seat_says_no_more():
    client = Client(FencedError("newer"))
    heartbeat = HeartbeatThread(client, Progress(), seconds=0.001)
    with heartbeat:
        heartbeat._thread.join(5)
        assert not heartbeat._thread.is_alive()
    assert len(client.told) == 1


def test_a_worker_reads_until_the_first_block_is_there_and_then_counts_batches():
    progress, seen = Progress(), []

    def blocks():
        for _ in range(2):
            seen.append((progress.activity, progress.done))
            yield RowBlock((np.zeros((3, 2, 1)),), (np.zeros((3, 2)),))

    list(progress.through(blocks()))
    assert seen == [("reading", 0), ("training", 3)]
    assert (progress.activity, progress.done) == ("training", 6)


@pytest.mark.parametrize("there", [True, False])
def test_the_log_on_a_standalone_master_is_beside_the_process(tmp_path, there):
    if there:
        (tmp_path / "stderr").touch()
    assert log_of({}, tmp_path) == (str(tmp_path / "stderr") if there else "")
