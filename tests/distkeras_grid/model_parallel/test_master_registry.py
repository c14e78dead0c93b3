"""The driver's directory hands out parts of the model, to each device its own."""

from __future__ import annotations

from functools import partial

import pytest

from distkeras_grid.errors import RemoteProtocolError
from distkeras_grid.model_parallel.master_registry import MasterRegistry, RegistryAddress
from distkeras_grid.parameter_server.auth import new_key, seat_key
from distkeras_grid.parameter_server.settings import BindAddress


@pytest.fixture
def guide():
    key_of = partial(seat_key, new_key())
    place = BindAddress("127.0.0.1", "127.0.0.1", 0, 1)
    parts = {0: b"last", 1: b"the first stage"}
    with MasterRegistry(place, key_of, "run", lambda _: None, parts) as directory:
        yield RegistryAddress("run", key_of, directory.address)


def test_each_device_gets_its_own_part(guide):
    for number, part in enumerate((b"last", b"the first stage")):
        with guide.ask(number, 0, 5.0) as asking:
            assert asking.model() == part


def test_a_device_without_a_part_is_told(guide):
    with guide.ask(2, 0, 5.0) as asking, pytest.raises(RemoteProtocolError):
        asking.model()
