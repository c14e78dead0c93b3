"""The Spark task that runs a parameter server on its executor's host."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from distkeras_grid.errors import GridError
from distkeras_grid.parameter_server.auth import new_nonce
from distkeras_grid.parameter_server.entering import enter
from distkeras_grid.parameter_server.hosting import VOCABULARY, Enter, host_server
from distkeras_grid.parameter_server.liveness import HANDSHAKE_SECONDS
from distkeras_grid.parameter_server.messages import WorkerHello
from distkeras_grid.parameter_server.settings import ServerAddress
from distkeras_grid.parameter_server.transports import own_address, unreachable

if TYPE_CHECKING:
    import pyarrow as pa

#: What a task yields when its server has ended, as Spark DDL.
SERVER_SCHEMA = "server int, host string"


@dataclass(frozen=True)
class ServerTaskPlan:
    """What the tasks of a run's servers must know; it travels in their closures.

    Parameters
    ----------
    run : str
        Name of the run.
    key_of : callable
        Returns in a task the key of its number.
    driver : ServerAddress
        Where the driver waits for the tasks.
    seconds : float
        How long the driver may take to ask for a server [s].
    """

    run: str
    key_of: Callable[[int], bytes] = field(repr=False)
    driver: ServerAddress
    seconds: float


def run_server(plan: ServerTaskPlan, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Run a server until the driver lets it go, or has gone.

    The process of the server has the only other end of its pipes here. So it ends with this task,
    also if that is killed.

    Parameters
    ----------
    plan : ServerTaskPlan
        The same for all tasks.
    batches : iterator of pyarrow.RecordBatch
        Rows from Spark, which are not used.

    Yields
    ------
    pyarrow.RecordBatch
        One row of `SERVER_SCHEMA`.
    """
    import pyarrow as pa
    from pyspark import TaskContext

    for _ in batches:
        pass
    context = TaskContext.get()
    if context is None:
        raise GridError("run_server runs inside a Spark task only.")
    number, attempt = context.partitionId(), context.taskAttemptId()
    try:
        address = own_address(plan.driver.host, plan.driver.port)
    except OSError as error:
        raise unreachable(plan.driver, error) from error
    hello = WorkerHello(plan.run, number, attempt, 0, new_nonce())
    key = plan.key_of(number)
    channel, _ = enter(plan.driver, VOCABULARY, key, hello, Enter, HANDSHAKE_SECONDS)
    with channel:
        try:
            host_server(channel, address, plan.seconds)
        except OSError as error:
            raise unreachable(plan.driver, error) from error
    row = {"server": number, "host": platform.node()}
    types = pa.schema([("server", pa.int32()), ("host", pa.string())])
    yield pa.RecordBatch.from_pylist([row], schema=types)
