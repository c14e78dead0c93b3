"""The start of Spark's JVM: its address, and what is done when it is interrupted."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psutil

from distkeras_grid.spark.internals import has_jvm


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
