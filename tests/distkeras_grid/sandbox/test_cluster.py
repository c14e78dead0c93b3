from __future__ import annotations

import socket

import pytest

from distkeras_grid.errors import SandboxError
from distkeras_grid.sandbox import configuration
from distkeras_grid.sandbox.cluster import can_bind, free_ports


def test_no_connection_is_given_a_daemons_port() -> None:
    ports = free_ports()
    numbers = {getattr(ports, name) for name in ports.names()}
    assert len(numbers) == len(ports.names())
    assert max(numbers) < 32768


def test_a_port_somebody_listens_on_is_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = free_ports().namenode
    with socket.socket() as somebody:
        somebody.bind(("127.0.0.1", taken))
        somebody.listen()
        assert not can_bind(taken)
        monkeypatch.setattr(configuration, "PORTS", range(taken, taken + 1))
        with pytest.raises(SandboxError, match=f"Only 0 ports from {taken} to {taken + 1}"):
            free_ports()
    assert can_bind(taken)
