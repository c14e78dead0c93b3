"""Parameter servers on executors: each is a Spark task, which takes a slot until the run ends."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Self

from distkeras_grid.errors import ParameterServerError, RefusedError, StartTimeoutError
from distkeras_grid.parameter_server.auth import common_half, new_key, own_half, seat_key
from distkeras_grid.parameter_server.gate import Gate
from distkeras_grid.parameter_server.hosting import VOCABULARY, Enter, RemoteServer
from distkeras_grid.parameter_server.messages import WorkerHello
from distkeras_grid.parameter_server.settings import ServerPlace
from distkeras_grid.parameter_server.transports import Listener, cannot_listen
from distkeras_grid.parameter_server.wire import ArrayChannel
from distkeras_grid.spark.launch import Launch
from distkeras_grid.worker.own_half import task_key
from distkeras_grid.worker.server_task import SERVER_SCHEMA, ServerTaskPlan, run_server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Seconds between two looks at the tasks while one is waited for.
LOOK_SECONDS = 0.5


class ServerTasks:
    """The tasks that run the servers of a run, as a context manager.

    They are given out in the order in which they come. Spark starts the task of a lost executor
    again. It is let in if its number has not been given out; otherwise there is nothing for it to
    do, because the run ends with its server.

    Parameters
    ----------
    spark : SparkSession
    place : ServerPlace
        Where the driver waits for the tasks.
    run : str
        Name of the run.
    count : int
        Number of servers.
    seconds : float
        How long to wait for each task [s].
    """

    def __init__(
        self, spark: SparkSession, place: ServerPlace, run: str, count: int, seconds: float
    ) -> None:
        self._spark, self._place, self._run = spark, place, run
        self._count, self._seconds = count, seconds
        # A key of their own: with one that came from the run's key by its number, a worker could
        # come as a server.
        self._key = new_key()
        self._came = threading.Condition()
        # By number, in the order in which they came.
        self._there: dict[int, ArrayChannel] = {}
        self._given: set[int] = set()
        self._gate: Gate
        self._launch: Launch
        self._open = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as opening:
            self._gate = opening.enter_context(self._listening())
            own_key = partial(task_key, common_half(self._key))
            plan = ServerTaskPlan(self._run, own_key, self._gate.address, self._seconds)
            self._launch = Launch(
                self._spark.range(0, self._count, numPartitions=self._count),
                partial(run_server, plan),
                SERVER_SCHEMA,
                f"{self._run} servers",
                secret_of=partial(own_half, self._key),
            )
            opening.callback(self._launch.cancel)
            self._launch.start()
            self._open = opening.pop_all()
        return self

    def _listening(self) -> Gate:
        at = self._place
        try:
            listener = Listener(at.bind_host, at.port, at.advertised_host, at.port_retries)
        except OSError as error:
            told = cannot_listen(at.bind_host, at.port, at.port_retries, error)
            raise ParameterServerError(told) from error
        key_of = partial(seat_key, self._key)
        return Gate(listener, key_of, self._run, VOCABULARY, Enter(), self._admit, self._permit)

    def __exit__(self, *exception: object) -> None:
        self._open.close()
        for channel in self._there.values():
            # It has been given no server.
            channel.close()

    def spawn(self) -> RemoteServer:
        """Wait for the next task, and return the server that it will run.

        Raises
        ------
        StartTimeoutError
            If none comes in time.
        GridError
            The error of a task that failed.
        """
        until = time.monotonic() + self._seconds
        while time.monotonic() < until:
            with self._came:
                if self._came.wait_for(lambda: bool(self._there), LOOK_SECONDS):
                    number = next(iter(self._there))
                    self._given.add(number)
                    return RemoteServer(self._there.pop(number))
            if (error := self._launch.error()) is not None:
                raise error
        raise StartTimeoutError(
            f"The driver has waited {self._seconds:g} s for a task to run parameter server "
            f"{len(self._given)} of {self._count} on an executor. Give the run more slots (one for "
            "each worker and one for each server), look at the executors' logs, or allow more "
            "(start_timeout)."
        )

    def _permit(self, hello: WorkerHello) -> None:
        with self._came:
            if hello.seat in self._given or hello.seat >= self._count:
                raise RefusedError(
                    f"Server {hello.seat} has been started by another attempt of this task."
                )

    def _admit(self, hello: WorkerHello, channel: ArrayChannel) -> None:
        with self._came:
            # The former attempt of this task has died before it was needed.
            former = self._there.pop(hello.seat, None)
            self._there[hello.seat] = channel
            self._came.notify_all()
        if former is not None:
            former.close()
