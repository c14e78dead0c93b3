"""Spark's JVM of a command that holds a lock: it keeps the lock, too, until its work has ended.

If the command is killed, its JVM and the application live some seconds longer. The kernel would
free a lock that only the command holds before they have ended.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import psutil

# How long a session may take to end; YARN's own client gives up earlier.
STOP_SECONDS = 60.0
LOOPBACK = "127.0.0.1"


@dataclass
class JvmFile:
    """An open file that the JVM of this process is to keep open."""

    descriptor: int  # The file
    by_jvm: bool = False  # Whether there is a JVM that keeps it open
    idle: bool = False  # Whether that JVM has no work left


_jvm_file: ContextVar[JvmFile | None] = ContextVar("jvm_file", default=None)


@contextmanager
def pass_to_jvm(descriptor: int) -> Iterator[JvmFile]:
    """Let a JVM that the block starts keep a file open; end its session with the block."""
    file = JvmFile(descriptor)
    token = _jvm_file.set(file)
    try:
        yield file
    finally:
        _jvm_file.reset(token)
        if file.by_jvm:
            file.idle = _end_session()


def start_context(settings: Mapping[str, str]) -> None:
    """Start JVM and context for `pass_to_jvm`, where a file is to be kept and no JVM runs.

    Otherwise PySpark starts them itself when it builds the session.
    """
    from pyspark import SparkConf, SparkContext, java_gateway

    file = _jvm_file.get()
    if file is None or SparkContext._gateway is not None:
        return
    conf = SparkConf()
    for name, value in settings.items():
        conf.set(name, value)
    launch: Any = java_gateway.launch_gateway
    gateway = launch(conf, {"pass_fds": (file.descriptor,)})
    file.by_jvm = True
    SparkContext(conf=conf, gateway=gateway)


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
    from pyspark import SparkContext

    this = psutil.Process()
    before = set(this.children())
    try:
        yield
    except BaseException:
        if SparkContext._gateway is None:
            for child in set(this.children()) - before:
                with suppress(psutil.NoSuchProcess):
                    if any("spark" in word.lower() for word in child.cmdline()):
                        child.kill()
        raise


def _end_session() -> bool:
    """End the session of this process, and with it its application; tell whether it has ended."""
    from pyspark import SparkContext

    context = SparkContext._active_spark_context
    if context is None:
        return True
    # Spark's own stop has no deadline.
    ending = threading.Thread(target=context.stop, name="end of the session", daemon=True)
    ending.start()
    ending.join(STOP_SECONDS)
    return not ending.is_alive()
