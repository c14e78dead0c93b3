"""How a client connects: by the fastest transport there is, with a proof of its key."""

from __future__ import annotations

import contextlib
import time
from typing import TypeVar

from msgspec.structs import replace

from distkeras_grid.errors import ParameterServerError
from distkeras_grid.parameter_server.array_channel import BROKEN, ArrayChannel, join
from distkeras_grid.parameter_server.auth import new_nonce
from distkeras_grid.parameter_server.message_schema import ArrayMessage, MessageSchema
from distkeras_grid.parameter_server.messages import WorkerHello
from distkeras_grid.parameter_server.settings import ServerAddress
from distkeras_grid.parameter_server.transports import Transport, routes, unreachable

_Welcome = TypeVar("_Welcome", bound=ArrayMessage)


def connect_and_authenticate(
    address: ServerAddress,
    vocabulary: MessageSchema,
    key: bytes,
    hello: WorkerHello,
    welcome: type[_Welcome],
    seconds: float,
) -> tuple[ArrayChannel, _Welcome]:
    """Connect to a gate, and prove that this end has the key of its number.

    `seconds`: time limit for connecting and proving [s].
    """
    until = time.monotonic() + seconds

    def by(route: Transport, limit: float) -> tuple[ArrayChannel, _Welcome]:
        try:
            channel = ArrayChannel(route.connect(max(0.001, limit)), vocabulary)
        except OSError as error:
            raise unreachable(address, error) from error
        try:
            claims = replace(hello, nonce=new_nonce())
            return channel, join(channel, key, claims, limit, welcome)
        except OSError as error:
            channel.close()
            raise unreachable(address, error) from error
        except ParameterServerError:
            channel.close()
            raise

    *others, last = routes(address)
    for route in others:
        # Another program may listen on a socket of this path.
        with contextlib.suppress(*BROKEN):
            return by(route, seconds / 2)
    return by(last, until - time.monotonic())
