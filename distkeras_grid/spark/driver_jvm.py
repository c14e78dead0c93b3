"""The address of Spark's JVM when it starts."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def with_address() -> Iterator[None]:
    """Let a JVM that the block launches have the address of the loopback.

    Only for what no other host connects to. A host's own name may not resolve, and Java asks for an
    address before any setting of Spark counts; or Spark refuses it, although Linux takes it
    (my_lab_pc). The second variable is for hosts files that give the loopback such a name.
    """
    names = ("SPARK_LOCAL_IP", "SPARK_LOCAL_HOSTNAME")
    if not os.environ.keys().isdisjoint(names):
        yield
        return
    os.environ.update(dict.fromkeys(names, "127.0.0.1"))
    try:
        yield
    finally:
        for name in names:
            del os.environ[name]


def resolves(host: str) -> bool:
    """Tell whether a host's name has an address."""
    try:
        socket.getaddrinfo(host, None)
    except OSError:
        return False
    return True
