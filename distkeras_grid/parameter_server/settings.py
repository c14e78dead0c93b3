"""What a parameter server is told when it starts, and where it is found."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

from distkeras_grid.errors import ConfigurationError, UnknownArgumentError
from distkeras_grid.parameter_server.compression import WireName, check_wire
from distkeras_grid.rules import Rule, build_rule


@dataclass(frozen=True)
class ServerSettings:
    """Settings of one run's server.

    Parameters
    ----------
    run : str
        Name of the run, at most 200 characters; every connection must name the same.
    seats : int
        Number of workers.
    rule : mapping
        ``{"name": ..., "parameters": {...}}`` of the update rule.
    trainable_size, statistics_size : int
        Scalars in the two parts of the vector.
    rows : int
        Rows of all seats together; an epoch ends when so many samples more are folded.
    epochs : int
        Epochs of the run.
    bind_host : str
        Address to listen on; workers on the same host use a Unix socket beside it.
    advertised_host : str
        Host that workers connect to.
    port : int, default 0
        TCP port; 0 takes a free one.
    port_retries : int, default 0
        How many ports after `port` are tried where it is taken, as Spark does with its own
        (``spark.port.maxRetries``).
    round_timeout : float, default 600
        Seconds that a synchronous round may stay incomplete.
    quorum : float, default 1
        Share of the workers whose commits close a synchronous round, 0.5 to 1; what comes later is
        dropped.
    compression : str, optional
        How the vectors of exchanges travel, one of `COMPRESSIONS`; None as they are.
    snapshots_per_epoch : int, default 0
        Copies of the center that are made while an epoch's samples are folded, the last one at its
        end; each is kept until the driver fetches it.
    """

    run: str
    seats: int
    rule: Mapping[str, Any]
    trainable_size: int
    statistics_size: int
    rows: int
    epochs: int
    bind_host: str
    advertised_host: str
    port: int = 0
    round_timeout: float = 600.0
    quorum: float = 1.0
    compression: WireName | None = None
    snapshots_per_epoch: int = 0
    port_retries: int = 0

    def __post_init__(self) -> None:
        if not 0 < len(self.run) <= 200:
            raise ConfigurationError(f"run must have 1 to 200 characters, {self.run!r} came in.")
        for name in ("seats", "trainable_size", "rows", "epochs", "round_timeout"):
            if not getattr(self, name) > 0:
                raise ConfigurationError(
                    f"{name} must be positive, {getattr(self, name)!r} came in."
                )
        for name in ("statistics_size", "snapshots_per_epoch", "port_retries"):
            if getattr(self, name) < 0:
                raise ConfigurationError(
                    f"{name} must not be negative, {getattr(self, name)!r} came in."
                )
        check_wire(self.compression)
        if not 0.5 <= self.quorum <= 1:
            raise ConfigurationError(f"quorum must lie in 0.5..1, {self.quorum!r} came in.")
        if not 0 <= self.port < 65536:
            raise ConfigurationError(f"port must lie in 0..65535, {self.port!r} came in.")

    @property
    def size(self) -> int:
        """Scalars in the vector."""
        return self.trainable_size + self.statistics_size

    def quorum_of(self, seats: int) -> int:
        """Return how many of so many seats the quorum asks for.

        Parameters
        ----------
        seats : int
            Those that could come.
        """
        # Not 0.8 * 5 itself, which as a float may lie above 4.
        return math.ceil(round(self.quorum * seats, 6))

    def build_rule(self) -> Rule:
        """Build the run's update rule."""
        return build_rule(self.rule["name"], self.rule["parameters"])

    def to_json(self) -> dict[str, Any]:
        """Return the settings as plain JSON values."""
        return {**asdict(self), "rule": dict(self.rule)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Build the settings that `to_json` described.

        Raises
        ------
        ConfigurationError
            If a setting is unknown, missing or out of range.
        """
        known = [field.name for field in fields(cls)]
        unknown = sorted(set(data) - set(known))
        if unknown:
            raise UnknownArgumentError.among(cls.__name__, unknown, known)
        try:
            return cls(**data)
        except TypeError as error:
            raise ConfigurationError(f"No server settings: {error}.") from error


@dataclass(frozen=True)
class ServerAddress:
    """Where a server is found.

    Parameters
    ----------
    host, port : str, int
        Its TCP socket.
    unix_path : str or None
        Its Unix socket, for peers on the same host.
    """

    host: str
    port: int
    unix_path: str | None = None

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"

    def to_json(self) -> dict[str, Any]:
        """Return the address as plain JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Build the address that `to_json` described."""
        path = data["unix_path"]
        return cls(str(data["host"]), int(data["port"]), None if path is None else str(path))
