"""A worker's loop: it does what the worker's mind asks, with an engine, a spool and a client.

Who owns what: the mind says what comes next, the spool holds the rows, the engine computes, the
client talks to the server.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from distkeras_grid.engine.base import Engine
from distkeras_grid.errors import GridError, RefusedError
from distkeras_grid.parameter_server.client import WorkerClient
from distkeras_grid.parameter_server.messages import Start
from distkeras_grid.rows import Block, aligned
from distkeras_grid.worker import mind as minds
from distkeras_grid.worker.mind import WorkerMind
from distkeras_grid.worker.orders import obey, shared_state

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from distkeras_grid.feeding.batches import Window
    from distkeras_grid.feeding.spool import Spool

Scalar = TypeVar("Scalar", bound=np.generic)


def train(
    mind: WorkerMind,
    engine: Engine,
    client: WorkerClient,
    start: Start,
    spool: Spool,
    class_weight: Mapping[int, float] | None = None,
) -> int:
    """Train and exchange windows until there are none left or the server says stop, and say so.

    Parameters
    ----------
    mind : WorkerMind
        Says what comes next.
    engine : Engine
        Computes windows and makes steps.
    client : WorkerClient
        Connected, and told to start: its vector is the center.
    start : Start
        What the server said.
    spool : Spool
        The rows of this seat.
    class_weight : mapping of int to float, optional
        Weight of the samples of each class, 1 for classes not named.

    Returns
    -------
    int
        Samples trained by this attempt.

    Raises
    ------
    NonFiniteLossError
        If the loss of a window, or a weight after it, is NaN or infinite; nothing of the window
        reaches the center.
    """
    event: minds.Event = minds.Started(start, client.vector)
    while True:
        *orders, last = mind.handle(event)
        for order in orders:
            obey(order, engine)
        if isinstance(last, minds.Finish):
            client.finish()
            return mind.samples
        if isinstance(last, minds.Compute):
            event = compute(last, engine, gather(spool, last.window, class_weight))
        else:
            event = _ask(last, engine, client)


def compute(action: minds.Compute, engine: Engine, blocks: Iterator[Block]) -> minds.Computed:
    """Let an engine train a window; return what it brought."""
    started, clock = time.time(), time.perf_counter()
    result = engine.run(action.before, blocks, action.after)
    seconds = time.perf_counter() - clock
    return minds.Computed(
        result.steps, result.samples, result.loss, result.metrics, started, seconds
    )


def _ask(action: minds.Action, engine: Engine, client: WorkerClient) -> minds.Event:
    """Ask the server, as the mind wants; return what it said."""
    try:
        match action:
            case minds.Exchange(commit, payload, reply):
                return minds.Replied(client.exchange(commit, payload, reply))
            case minds.FetchStep(version, out):
                return minds.StepFetched(client.fetch_step(version, out))
            case minds.FetchState():
                return minds.StateFetched(client.fetch_state())
            case minds.HandOver(version, weights):
                client.hand_over(version, weights, shared_state(engine, version))
                return minds.HandedOver()
            case minds.Rejoin():
                return minds.Started(client.rejoin(), client.vector)
            case _:
                raise GridError(f"{type(action).__name__} is nothing to ask a server.")
    except RefusedError as refusal:
        return minds.Refused(refusal)


def gather(
    spool: Spool, window: Window, class_weight: Mapping[int, float] | None
) -> Iterator[Block]:
    """Read the rows of a window, block by block, in ``[steps, batch, ...]``.

    Class weights become sample weights here, on the host, as in Keras' own ``fit``.
    """
    for indices in window.blocks:
        rows = spool.gather(indices.ravel())
        weight = sample_weights(rows.labels, rows.weights, class_weight)
        yield Block(
            x=tuple(_in_blocks(features, indices) for features in rows.features),
            y=tuple(_in_blocks(labels, indices) for labels in rows.labels),
            weight=None if weight is None else _in_blocks(aligned(weight), indices),
        )


def sample_weights(
    labels: Sequence[NDArray[Any]],
    weights: NDArray[np.float32] | None,
    class_weight: Mapping[int, float] | None,
) -> NDArray[np.float32] | None:
    """Multiply sample weights by the weight of each label's class, which is named as in Keras.

    With several numbers, the place of the largest is the class; a single one is the class itself.
    Classes are those of the only label; sample weights are of the row, whatever its labels.

    Examples
    --------
    >>> sample_weights([np.array([0, 1, 1])], None, {1: 2.0}).tolist()
    [1.0, 2.0, 2.0]
    >>> label = np.array([[0, 1], [1, 0]])
    >>> sample_weights([label], np.array([1, 3], np.float32), {1: 2.0}).tolist()
    [2.0, 3.0]
    """
    if class_weight is None:
        return weights
    (label,) = labels
    single = label.ndim == 1 or label.shape[-1] == 1
    classes = np.rint(label.reshape(-1)) if single else label.argmax(axis=-1)
    factors = np.array([class_weight.get(int(c), 1.0) for c in classes], dtype=np.float32)
    return factors if weights is None else factors * weights


def _in_blocks(array: NDArray[Scalar], indices: NDArray[np.int64]) -> NDArray[Scalar]:
    return array.reshape(*indices.shape, *array.shape[1:])
