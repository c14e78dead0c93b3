"""A worker's training loop: a window of batches, one exchange, the next window.

Who owns what: `windows` says which rows come when, `spool` holds them, `engine` computes, `rule`
says what is sent and what the reply means, `client` talks to the server. The loop joins them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np

from distkeras_grid.engine.base import Block, Engine, SteppingEngine, aligned_empty
from distkeras_grid.errors import NonFiniteLossError, RefusedError
from distkeras_grid.parameter_server.center import is_finite
from distkeras_grid.parameter_server.client import WorkerClient
from distkeras_grid.parameter_server.messages import Exchanged, Start, WindowCommit
from distkeras_grid.rules import Rule, adopt_vector, propose_vector
from distkeras_grid.worker.steps import Steps

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from distkeras_grid.feeding.batches import Window
    from distkeras_grid.feeding.spool import Spool
    from distkeras_grid.rules import Accumulator
    from distkeras_grid.weights import Vector

Scalar = TypeVar("Scalar", bound=np.generic)


def train(
    engine: Engine,
    rule: Rule,
    client: WorkerClient,
    start: Start,
    spool: Spool,
    windows: Iterable[Window],
    class_weight: Mapping[int, float] | None = None,
    accumulator: Accumulator | None = None,
) -> int:
    """Train the windows, exchanging after each, until they end or the server says stop.

    Parameters
    ----------
    engine : Engine
        Computes a window.
    rule : Rule
        The worker's side of the algorithm.
    client : WorkerClient
        Connected, and told to start: its vector is the center.
    start : Start
        What the server said.
    spool : Spool
        The rows of this seat.
    windows : iterable of Window
        From the first one that is not folded yet.
    class_weight : mapping of int to float, optional
        Weight of the samples of each class, 1 for classes not named.
    accumulator : Accumulator, optional
        Holds back what of each commit is not sent yet.

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
    sections = engine.layout.sections
    steps = None
    if rule.steps_on_workers:
        steps = Steps(cast(SteppingEngine, engine), client)
    # Aligned memory is handed to TensorFlow without a copy.
    before, after, payload = (aligned_empty(engine.layout.size) for _ in range(3))
    np.copyto(before, client.vector)
    version = start.version if steps is None else steps.begin(start, before)
    samples = 0
    for window in windows:
        started, clock = time.time(), time.perf_counter()
        result = engine.run(before, gather(spool, window, class_weight), after)
        if not math.isfinite(result.loss):
            raise NonFiniteLossError(
                f"The loss became {result.loss} in epoch {window.epoch}, window {window.window} "
                f"of worker {client.seat}: lower the learning rate, or look for values in the "
                "data that are not finite or not scaled."
            )
        propose_vector(rule, sections, before, after, result.steps, payload)
        if accumulator is not None:
            accumulator.compress(payload, window.epoch)
        commit = WindowCommit(
            sequence=window.sequence,
            version=version,
            epoch=window.epoch,
            window=window.window,
            steps=result.steps,
            samples=result.samples,
            loss=result.loss,
            metrics=result.metrics,
            started=started,
            seconds=time.perf_counter() - clock,
        )
        # The reply lands where the next window starts: for most rules it is that already.
        exchanged = _exchange(client, commit, payload, reply=before)
        samples += result.samples
        if steps is None:
            version = exchanged.version
            adopt_vector(rule, sections, after, before, out=before)
            if exchanged.learning_rate is not None:
                engine.set_learning_rate(exchanged.learning_rate)
        else:
            version = steps.catch_up(exchanged.version, before)
            steps.tell(exchanged, before)
        if exchanged.stop:
            break
    if steps is not None:
        steps.end(before)
    return samples


def _exchange(
    client: WorkerClient, commit: WindowCommit, payload: Vector, reply: Vector
) -> Exchanged:
    """Exchange a window; a refusal for weights that are not finite becomes an error of training.

    The server looks at every commit, so the worker looks only at what was refused.
    """
    try:
        return client.exchange(commit, payload, reply)
    except RefusedError as refusal:
        if is_finite(payload):
            raise
        raise NonFiniteLossError(str(refusal)) from refusal


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
            weight=None if weight is None else _in_blocks(weight, indices),
        )


def sample_weights(
    labels: Sequence[NDArray[Any]],
    weights: NDArray[np.float32] | None,
    class_weight: Mapping[int, float] | None,
) -> NDArray[np.float32] | None:
    """Multiply sample weights by the weight of each label's class, which is named as in Keras.

    Of several numbers the place of the largest is the class, a single one is the class itself.
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
