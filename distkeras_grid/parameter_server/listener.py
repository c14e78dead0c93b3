"""Lets in clients that have the run's key, and gives each a channel for messages with arrays."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable
from typing import Self

from distkeras_grid.errors import ParameterServerError
from distkeras_grid.parameter_server.accept_loop import accept_all
from distkeras_grid.parameter_server.array_channel import ArrayChannel, accept
from distkeras_grid.parameter_server.auth import NonceMemory
from distkeras_grid.parameter_server.message_schema import ArrayMessage, MessageSchema
from distkeras_grid.parameter_server.messages import LONGEST_GOODBYE, Close, WorkerHello
from distkeras_grid.parameter_server.settings import ServerAddress
from distkeras_grid.parameter_server.streams import Stream
from distkeras_grid.parameter_server.transports import Listener

#: Most clients at a time that have not proved yet that they have a key.
STRANGERS = 64


class HandshakeListener:
    """Listens, and admits clients that prove that they have their key."""

    def __init__(
        self,
        listener: Listener,
        key_of: Callable[[int], bytes],
        run: str,
        vocabulary: MessageSchema,
        welcome: ArrayMessage,
        admit: Callable[[WorkerHello, ArrayChannel], None],
        permit: Callable[[WorkerHello], None] = lambda _: None,
    ) -> None:
        self._listener = listener
        self._key_of = key_of
        self._run, self._vocabulary = run, vocabulary
        self._welcome = welcome
        self._admit = admit
        self._permit = permit
        self._nonces = NonceMemory()
        self._lock = threading.Lock()
        self._strangers = threading.BoundedSemaphore(STRANGERS)
        for door in listener.doors:
            meeting = (door, self._strangers, self._meet)
            threading.Thread(target=accept_all, args=meeting, daemon=True).start()

    @property
    def address(self) -> ServerAddress:
        """Address to which clients connect."""
        return self._listener.address

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._listener.close()

    def check(self, nonce: str) -> None:
        """Refuse a nonce that was used before; for `accept`."""
        with self._lock:
            self._nonces.check(nonce)

    def remember(self, nonce: str) -> None:
        """Record the nonce of a client that has proved that it has the key; for `accept`."""
        with self._lock:
            self._nonces.remember(nonce)

    def _meet(self, stream: Stream) -> None:
        channel = ArrayChannel(stream, self._vocabulary)
        try:
            hello = accept(
                channel,
                self._key_of,
                self._run,
                self,
                self._welcome,
                self._permit,
            )
        except ParameterServerError as error:
            sys.stderr.write(f"a connection was refused: {type(error).__name__}: {error}\n")
            with contextlib.suppress(OSError):
                channel.send(Close(type(error).__name__, str(error)[:LONGEST_GOODBYE]))
            channel.close()
            return
        except OSError as error:
            sys.stderr.write(f"a connection broke: {error}\n")
            channel.close()
            return
        finally:
            self._strangers.release()
        try:
            self._admit(hello, channel)
        except ParameterServerError as error:
            sys.stderr.write(f"a connection was closed: {type(error).__name__}: {error}\n")
            channel.close()
