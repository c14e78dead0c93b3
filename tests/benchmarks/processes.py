"""Run an object in its own process, with its own threads, kernels and memory.

TensorFlow chooses its threads and kernels before its first operation, so each side of a
comparison that runs on this machine is a fresh interpreter.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Self

from distkeras_grid.errors import TrainingError

START_SECONDS = 300.0
STOP_SECONDS = 10.0


class Side:
    """An object that lives in a process of its own; a context manager."""

    def __init__(self, build: Callable[[], Any], environment: Mapping[str, str]) -> None:
        self._build = build
        self._environment = dict(environment)
        self.start_seconds = 0.0

    def __enter__(self) -> Self:
        began = time.perf_counter()
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        arguments = (theirs, self._build, self._environment)
        self._process = context.Process(target=_serve, args=arguments, daemon=True)
        self._process.start()
        theirs.close()
        try:
            self.answer(START_SECONDS)
        except BaseException:
            self.__exit__()
            raise
        self.start_seconds = time.perf_counter() - began
        return self

    def __exit__(self, *exception: object) -> None:
        self._pipe.close()
        if exception and exception[0] is not None:
            self._process.terminate()
        self._process.join(STOP_SECONDS)
        if self._process.is_alive():
            self._process.kill()
            self._process.join(STOP_SECONDS)

    def ask(self, method: str, *arguments: Any) -> None:
        """Start a method of the object."""
        self._pipe.send((method, arguments))

    def answer(self, seconds: float) -> Any:
        """Return what the method returned, at most `seconds` from now."""
        try:
            if not self._pipe.poll(seconds):
                raise TrainingError(
                    f"The process {self._process.pid} has not answered for {seconds:.0f} s. Look "
                    "what else this machine does, and run it again."
                )
            well, content = self._pipe.recv()
        except EOFError as error:
            self._process.join(STOP_SECONDS)
            raise TrainingError(
                f"The process {self._process.pid} died with exit code {self._process.exitcode}. "
                "A negative one is a signal, such as -9 for lack of memory."
            ) from error
        if not well:
            raise TrainingError(f"The process {self._process.pid} failed with {content}")
        return content


def _serve(pipe: Any, build: Callable[[], Any], environment: Mapping[str, str]) -> None:
    """Build the object, and call the methods that the pipe names until it closes."""
    os.environ.update(environment)
    try:
        with _silence():
            served = build()
        pipe.send((True, None))
        while True:
            method, arguments = pipe.recv()
            pipe.send((True, getattr(served, method)(*arguments)))
    except EOFError:
        return
    except Exception as error:  # noqa: BLE001 - raised again by answer(), in the other process
        pipe.send((False, f"{type(error).__name__}: {error}"))


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
