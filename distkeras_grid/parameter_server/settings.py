"""The settings with which a parameter server starts, and its address."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from distkeras_grid.errors import ConfigurationError
from distkeras_grid.frozen_struct import FrozenStruct
from distkeras_grid.spec import RunSpec

#: Format of the length before the settings sent to the process, and before its address.
LENGTH = struct.Struct("<Q")


class BindAddress(FrozenStruct, frozen=True, kw_only=False):
    """Where a server is to listen, and the address that workers receive."""

    bind_host: str  # Address to listen on; workers on the same host use a Unix socket beside it
    # Host that workers connect to. It differs from `bind_host` behind NAT or in Docker.
    advertised_host: str
    port: int = 0  # TCP port, the same on both sides; 0 takes a free one
    # How many ports after `port` are tried if it is in use, as Spark does with its own
    # (``spark.port.maxRetries``)
    port_retries: int = 0

    def __post_init__(self) -> None:
        if self.port_retries < 0:
            raise ConfigurationError(
                f"port_retries must be at least 0. Received: {self.port_retries!r}."
            )
        if not 0 <= self.port < 65536:
            raise ConfigurationError(f"port must be from 0 to 65535. Received: {self.port!r}.")


class ServerSettings(FrozenStruct, frozen=True):
    """Settings of one run's server."""

    run: str  # Name of the run, at most 200 characters; every connection must name the same
    spec: RunSpec  # The run
    place: BindAddress  # Where to listen

    def __post_init__(self) -> None:
        if not 0 < len(self.run) <= 200:
            raise ConfigurationError(f"run must have 1 to 200 characters. Received: {self.run!r}.")


@dataclass(frozen=True)
class ServerAddress:
    """Where a server is found."""

    host: str  # host and port: Its TCP socket
    port: int
    # The abstract name of its Unix socket, for peers on the same host (Linux)
    unix_name: str | None = None

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"

    def to_json(self) -> dict[str, Any]:
        """Return the address as plain JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Build the address that `to_json` described."""
        return cls(**data)
