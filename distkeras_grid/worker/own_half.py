"""How a worker's task receives the half of its seat's key that no other seat has.

All tasks run the same function, so what only one seat may know cannot be in it. Each seat has a
Spark job of its own, and Spark sends the local properties of a job to the tasks of that job only,
also to those that it starts again.

Spark writes local properties to its event log, if it keeps one, and leaves out none of them. So the
property has half of a key, which is of no use without the other half.
"""

from __future__ import annotations

from distkeras_grid.errors import GridError
from distkeras_grid.parameter_server.auth import join_halves

#: Name of the local property. Where Spark hides secrets, it knows them by the word "secret".
PROPERTY = "distkeras_grid.seat.secret"


def task_key(common: bytes, seat: int) -> bytes:
    """Return the key of this task's seat.

    Parameters
    ----------
    common : bytes
        The common half of the run's keys.
    seat : int
        Number of the seat, for the error. For another one than the task's, the key is not valid.

    Raises
    ------
    GridError
        If this is no Spark task, or its job has no such property.
    """
    from pyspark import TaskContext

    context = TaskContext.get()
    own = None if context is None else context.getLocalProperty(PROPERTY)
    if own is None:
        raise GridError(
            f"The key of worker {seat} comes as the local property {PROPERTY!r} of its Spark job. "
            "Received: none. Leave PYSPARK_PIN_THREAD unset in the driver's environment."
        )
    return join_halves(common, bytes.fromhex(own))
