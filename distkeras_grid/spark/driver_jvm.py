"""The start of Spark's JVM: on a host without an address, and when it is interrupted."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psutil

from distkeras_grid.spark.internals import has_jvm

LOOPBACK = "127.0.0.1"


@contextmanager
def with_address() -> Iterator[None]:
    """Let a JVM that the block launches start on a host whose own name does not resolve.

    Java asks for an address before any setting of Spark counts. Only for what no other host
    connects to.
    """
    if "SPARK_LOCAL_IP" in os.environ or resolves(socket.gethostname()):
        yield
        return
    os.environ["SPARK_LOCAL_IP"] = LOOPBACK
    try:
        yield
    finally:
        del os.environ["SPARK_LOCAL_IP"]


def resolves(host: str) -> bool:
    """Tell whether a host's name has an address."""
    try:
        socket.getaddrinfo(host, None)
    except OSError:
        return False
    return True


@contextmanager
def launching() -> Iterator[None]:
    """Kill the JVM that the block starts if the block is interrupted before Python knows its port.

    It would stay for ever: PySpark has then deleted the folder in which a JVM leaves its port, and
    only one that has left it ends with its process.
    """
    this = psutil.Process()
    before = set(this.children())
    try:
        yield
    except BaseException:
        if not has_jvm():
            for child in set(this.children()) - before:
                with suppress(psutil.NoSuchProcess):
                    if any("spark" in word.lower() for word in child.cmdline()):
                        child.kill()
        raise
