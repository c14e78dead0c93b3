"""How a worker's task finds its servers, with which key, and what it reports to them."""

from types import SimpleNamespace

import pytest

from distkeras_grid.errors import (
    AuthenticationError,
    FencedError,
    LocalDiskError,
    LocalProtocolError,
    NoSpaceError,
    RemoteProtocolError,
    ServerUnreachableError,
    StorageError,
)
from distkeras_grid.parameter_server.auth import seat_key
from distkeras_grid.parameter_server.client import WorkerClient
from distkeras_grid.parameter_server.sharded_client import ShardedClient
from distkeras_grid.spec import LayoutSpec
from distkeras_grid.worker.task import WorkerPlan, connect, reported
from tests.distkeras_grid.parameter_server.conftest import make_commit
from tests.distkeras_grid.parameter_server.several import Several
from tests.specs import make_settings


def plan_of(several, **changes):
    first, *others = several.addresses
    return WorkerPlan(
        spec=several.settings.spec,
        model=b"",
        custom_objects={},
        run=several.settings.run,
        address=first,
        others=tuple(others),
        **{"key": seat_key(several.key, 0), **changes},
    )


def settings_of(servers, seats=1):
    layout = LayoutSpec(trainable_size=6, statistics_size=2, worker_state_limit=100)
    return make_settings(layout=layout, servers=servers, seats=seats, rows=seats)


@pytest.mark.parametrize(("servers", "kind"), [(1, WorkerClient), (3, ShardedClient)])
def test_it_takes_its_seat_on_each_server(servers, kind):
    with Several(settings_of(servers), servers, 5.0) as several:
        with connect(plan_of(several), 0, 7) as client:
            assert isinstance(client, kind)
            client.ready(1)
            assert (client.vector == 5).all()
            payload, reply = client.vector.copy(), client.vector.copy()
            client.exchange(make_commit(0), payload, reply)
            client.finish()
        for driver in several.drivers():
            (seat,) = driver.poll().seats
            assert (seat.attempt, seat.status, seat.commits) == (7, "finished", 1)


@pytest.mark.parametrize("servers", [1, 2])
def test_what_a_task_holds_opens_its_own_seat_only(servers):
    with Several(settings_of(servers, seats=2), servers) as several:
        plan = plan_of(several, key=seat_key(several.key, 1))
        assert several.key.hex() not in repr(plan)
        assert repr(plan.key) not in repr(plan)
        with pytest.raises(AuthenticationError):
            connect(plan, 0, 7)
        with connect(plan, 1, 7) as client:
            assert client.seat == 1


@pytest.mark.parametrize(
    ("error", "told"),
    [
        # Spark starts the task again, on another host perhaps.
        (NoSpaceError("no room for the rows"), []),
        (LocalDiskError("Input/output error"), []),
        (ServerUnreachableError("no connection"), []),
        (FencedError("a newer attempt has the seat"), []),
        # Bytes were altered: of a frame, of a sign of life before it, while connecting again.
        (RemoteProtocolError("the seal does not fit"), []),
        (LocalProtocolError("the connection is closed"), []),
        (AuthenticationError("the server does not hold the key"), []),
        # These are of the user's own code, or of data that are the same everywhere.
        (ValueError("no such class"), [("ValueError", "no such class")]),
        (OSError("no such file"), [("OSError", "no such file")]),
        (StorageError("no mirror answers"), [("StorageError", "no mirror answers")]),
    ],
)
def test_only_an_error_that_would_occur_in_another_attempt_is_reported(error, told):
    found = []
    client = SimpleNamespace(first=SimpleNamespace(fail=lambda *of: found.append(of)))
    with pytest.raises(type(error)), reported(client):
        raise error
    assert found == told
