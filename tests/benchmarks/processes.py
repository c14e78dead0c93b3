"""Run an object in its own process, with its own threads, kernels and memory.

TensorFlow chooses its threads and kernels before its first operation, so each side of a
comparison that runs on this machine is a fresh interpreter.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from typing import Any, Self

START_SECONDS = 300.0

#: The object of this process, where it is that of a side.
served: Any = None


class Side:
    """An object that lives in a process of its own; a context manager."""

    def __init__(self, build: Callable[[], Any], environment: Mapping[str, str]) -> None:
        arguments = (build, dict(environment))
        context = multiprocessing.get_context("spawn")
        self._pool = ProcessPoolExecutor(1, context, _serve, arguments)
        self.start_seconds = 0.0

    def __enter__(self) -> Self:
        began = time.perf_counter()
        self._pid = self._pool.submit(os.getpid).result(START_SECONDS)
        self.start_seconds = time.perf_counter() - began
        return self

    def __exit__(self, *exception: object) -> None:
        if exception and exception[0] is not None:
            os.kill(self._pid, signal.SIGTERM)
        self._pool.shutdown()

    def ask(self, method: str, *arguments: Any) -> None:
        """Start a method of the object."""
        self._asked = self._pool.submit(_call, method, arguments)

    def answer(self, seconds: float) -> Any:
        """Return what the method returned, at most `seconds` from now."""
        return self._asked.result(seconds)


def _serve(build: Callable[[], Any], environment: Mapping[str, str]) -> None:
    global served  # noqa: PLW0603
    os.environ.update(environment)
    with _silence():
        served = build()


def _call(method: str, arguments: tuple[Any, ...]) -> Any:
    return getattr(served, method)(*arguments)


@contextmanager
def _silence() -> Iterator[None]:
    """Drop what native code writes to standard error.

    TensorFlow 2.21 announces there that oneDNN is on, whatever its log level.
    """
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)
