"""A worker's loop: it carries out what the worker's core asks, with an engine, rows and a client.

The core decides what comes next, a source provides the rows, the engine computes, and the client
talks to the server.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from distkeras_grid.engine.base import Engine, State
from distkeras_grid.errors import GridError, RefusedError
from distkeras_grid.parameter_server.messages import Start
from distkeras_grid.parameter_server.sharded_client import AnyClient
from distkeras_grid.rows import RowBlock
from distkeras_grid.worker import worker_core as cores
from distkeras_grid.worker.engine_actions import apply_action, shared_state
from distkeras_grid.worker.progress import Progress
from distkeras_grid.worker.worker_core import WorkerCore
from distkeras_grid.worker.worker_state import WorkerState

if TYPE_CHECKING:
    from distkeras_grid.feeding.source import RowSource
    from distkeras_grid.records import LocalSet
    from distkeras_grid.weights import Vector

#: Called with a window that has been trained.
AfterWindow: TypeAlias = Callable[[cores.Compute], "LocalSet | None"]
#: Called with each start and its center, which it may replace.
OnStart: TypeAlias = Callable[[Start, "Vector"], None]


def train(
    core: WorkerCore,
    engine: Engine,
    client: AnyClient,
    start: Start,
    source: RowSource,
    after_window: AfterWindow | None = None,
    progress: Progress | None = None,
    first: State | None = None,
    on_start: OnStart | None = None,
) -> int:
    """Train and exchange windows until none is left or the server stops; report the end."""
    progress = progress or Progress()
    event: cores.Event = _started(start, client, on_start)
    while True:
        *orders, last = core.handle(event)
        for order in orders:
            apply_action(order, engine, first)
        if isinstance(last, cores.Compute):
            event = compute(last, engine, progress.through(source.blocks(last.window.blocks)))
            if after_window is not None:
                event = replace(event, local=after_window(last))
            continue
        if isinstance(last, cores.FinishWorker):
            client.finish()
            return core.samples
        if isinstance(last, cores.Reconnect):
            event = _started(client.first.reconnect(), client, on_start)
        else:
            event = _ask(last, engine, client)


def _started(start: Start, client: AnyClient, on_start: OnStart | None) -> cores.StartAnswer:
    if on_start is not None:
        on_start(start, client.vector)
    return cores.StartAnswer(start, client.vector)


def compute(
    action: cores.Compute, engine: Engine, blocks: Iterator[RowBlock]
) -> cores.WindowAnswer:
    """Let an engine train a window; return the result."""
    started, clock = time.time(), time.perf_counter()
    result = engine.run(action.before, blocks, action.after)
    return cores.WindowAnswer(result, started, time.perf_counter() - clock)


def _ask(action: cores.Action, engine: Engine, client: AnyClient) -> cores.Event:
    """Make the request that the core wants; return the server's answer as an event."""
    try:
        match action:
            case cores.Exchange(commit, payload, reply):
                return client.exchange(commit, payload, reply)
            case cores.RequestStep(version, out):
                return client.first.fetch_step(version, out)
            case cores.RequestState():
                return cores.StateAnswer(client.first.fetch_state())
            case cores.StoreOptimizerState(version, weights):
                client.first.put_optimizer_state(version, weights, shared_state(engine, version))
                return cores.HandedOver()
            case cores.StoreWorkerState(sequence, version, before, offset, residuals):
                own = WorkerState(before, offset, residuals, dict(engine.state()))
                return client.first.put_worker_state(sequence, version, own.to_bytes())
            case cores.RestoreWorkerState():
                answer, data = client.get_worker_state()
                return cores.RestoreAnswer(
                    answer.sequence, answer.version, WorkerState.from_bytes(data)
                )
            case _:
                raise GridError(f"{type(action).__name__} is nothing to ask a server.")
    except RefusedError as refusal:
        return cores.RejectionAnswer(refusal)
