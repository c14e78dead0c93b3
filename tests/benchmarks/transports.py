"""What one transport of this host carries: one process sends, another receives, nothing else."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack

import numpy as np

TRANSPORTS = ("tcp", "unix socket", "shared memory")
LIMIT_BYTES = 2 * 10**9
# Parts of it that are copied one after the other: 20 MB each.
COPIES = 100

RECEIVER = """
import socket, sys
family, address, count = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
stream = socket.socket(family)
stream.connect(address if family == socket.AF_UNIX else ("127.0.0.1", int(address)))
buffer = bytearray(1 << 18)
while count > 0:
    count -= stream.recv_into(buffer)
stream.send(b"!")
"""


def measure_copy() -> float:
    """Return the bytes per second that one process copies."""
    source = np.ones(LIMIT_BYTES // COPIES, np.uint8)
    target = np.zeros_like(source)
    began = time.perf_counter()
    for _ in range(COPIES):
        np.copyto(target, source)
    return LIMIT_BYTES / (time.perf_counter() - began)


def measure_limit(transport: str) -> float:
    """Return the bytes per second that one transport carries one way on this host."""
    if transport == "shared memory":
        return measure_copy()
    unix = transport == "unix socket"
    with ExitStack() as stack:
        if unix:
            directory = stack.enter_context(tempfile.TemporaryDirectory())
            family, target = socket.AF_UNIX, os.path.join(directory, "s")
        else:
            family, target = socket.AF_INET, ("127.0.0.1", 0)
        listening = stack.enter_context(socket.socket(family))
        listening.bind(target)
        listening.listen()
        name = target if unix else str(listening.getsockname()[1])
        child = subprocess.Popen(
            [sys.executable, "-c", RECEIVER, str(int(family)), str(name), str(LIMIT_BYTES)]
        )
        stream = stack.enter_context(listening.accept()[0])
        if unix:
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        data = memoryview(bytearray(1 << 18))
        began, left = time.perf_counter(), LIMIT_BYTES
        while left > 0:
            left -= stream.send(data[: min(left, len(data))])
        stream.recv(1)
        seconds = time.perf_counter() - began
        child.wait()
    return LIMIT_BYTES / seconds
