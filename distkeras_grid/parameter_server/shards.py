"""The center cut over several servers: which slice each has, and what they tell together.

Each server is an ordinary one, with a vector of its own: a slice of the whole vector. Rules are
elementwise, so the slices of a fold are the fold of the slices. Each server counts its own versions
and folds each window once. What a run has only once is on the first server: the history, the
learning rate, the signs of life, and what workers keep.

Nothing here has a process, a socket or a clock.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from msgspec import structs

from distkeras_grid.array_tree import Packed
from distkeras_grid.errors import ConfigurationError
from distkeras_grid.parameter_server.checkpoint_state import SavedLedger
from distkeras_grid.parameter_server.messages import CenterUpdate
from distkeras_grid.parameter_server.settings import ServerSettings
from distkeras_grid.records import Event, WindowRecord, WorkerRecord
from distkeras_grid.spec import LayoutSpec, RunSpec
from distkeras_grid.weights import shard_sections


@dataclass(frozen=True, slots=True)
class Shard:
    """One server's slice of the vector."""

    number: int  # Number of the server, from 0
    start: int  # start and stop: The slice, in scalars
    stop: int

    @property
    def span(self) -> slice:
        """The slice of the whole vector."""
        return slice(self.start, self.stop)

    @property
    def size(self) -> int:
        """Number of scalars."""
        return self.stop - self.start


def cut(layout: LayoutSpec, servers: int) -> tuple[Shard, ...]:
    """Cut a vector into slices of equal length, one for each server.

    Each slice has something that the update rule moves. So the last ones may be longer than the
    others, if statistics are a large part of the vector.

    Examples
    --------
    >>> [(shard.start, shard.stop) for shard in cut(LayoutSpec(trainable_size=10), 3)]
    [(0, 3), (3, 6), (6, 10)]
    >>> layout = LayoutSpec(trainable_size=4, statistics_size=8)
    >>> [(shard.start, shard.stop) for shard in cut(layout, 3)]
    [(0, 2), (2, 3), (3, 12)]
    """
    if not 1 <= servers <= layout.trainable_size:
        raise ConfigurationError(
            f"A model of {layout.trainable_size} trainable numbers can be cut over 1 to "
            f"{layout.trainable_size} servers. Received: num_servers={servers}."
        )
    left = layout.trainable_size - servers
    inner = (min(n * layout.size // servers, left + n) for n in range(1, servers))
    places = [0, *inner, layout.size]
    return tuple(Shard(n, *ends) for n, ends in enumerate(pairwise(places)))


def shard_spec(spec: RunSpec, shard: Shard) -> RunSpec:
    """Return a run as the server of a shard sees it.

    `shard`: the server's slice. Only the first server keeps what workers need to go on.
    """
    sections = shard_sections(spec.layout.sections, shard.start, shard.stop)
    trainable, statistics = (section.size for section in sections)
    layout = LayoutSpec(
        trainable_size=trainable,
        statistics_size=statistics,
        worker_state_limit=0 if shard.number else spec.layout.worker_state_limit,
    )
    return spec.change(layout=layout)


def shard_run(run: str, number: int) -> str:
    """Return the name under which clients ask for a shard's server.

    All servers of a run have the same key. By their names, a client that was led to another one
    than it asked for is refused.

    Examples
    --------
    >>> shard_run("ADAG-1f", 0), shard_run("ADAG-1f", 2)
    ('ADAG-1f', 'ADAG-1f/2')
    """
    return f"{run}/{number}" if number else run


def shard_settings(settings: ServerSettings, shard: Shard) -> ServerSettings:
    """Return the settings of a shard's server."""
    place = settings.place
    if place.port:
        place = structs.replace(place, port=place.port + shard.number)
    return ServerSettings(
        run=shard_run(settings.run, shard.number),
        spec=shard_spec(settings.spec, shard),
        place=place,
    )


def split_parts(saved: Sequence[Packed], servers: int) -> list[Sequence[Packed]]:
    """Return for each server its own parts of a checkpoint; empty ones if there is none.

    Examples
    --------
    >>> import numpy as np
    >>> first, worker, second = (np.full(1, n, np.uint8) for n in range(3))
    >>> [[int(part[0]) for part in own] for own in split_parts([first, worker, second], 2)]
    [[0, 1], [2]]
    """
    if not saved:
        return [()] * servers
    own = len(saved) - (servers - 1)
    return [saved[:own], *(saved[n : n + 1] for n in range(own, len(saved)))]


class EventMerger:
    """What the servers of a run tell, as if one server told it.

    The record of a window is that of the first server, with the bytes of all, once all have
    folded it. Whatever the first server tells after a window waits with it, so that an epoch
    has ended when it has ended on every server, or a checkpoint has been taken (`flush`). Only
    the news of workers do not wait: a window may never become complete after its worker has
    failed.

    Examples
    --------
    >>> lost = WorkerRecord(worker=1, attempt=3, status="lost")
    >>> joined = EventMerger(1)
    >>> joined.add(0, CenterUpdate(version=0, samples_folded=0, seats=(), events=(lost,)))
    >>> joined.merged_update().events == (lost,)
    True
    """

    def __init__(self, servers: int, ahead: Sequence[Mapping[int, int]] = ()) -> None:
        # What waits for other servers, and what waits for nothing any more.
        self._waiting: deque[Event] = deque()
        self._ready: list[Event] = []
        self._others = [WindowQueue(each) for each in ahead or [{}] * (servers - 1)]
        self._newest = [CenterUpdate(version=0, samples_folded=0, seats=(), events=())] * servers

    def add(self, number: int, update: CenterUpdate) -> None:
        """Note what a server tells; `due` tells it on."""
        self._newest[number] = update
        for event in update.events:
            if not number:
                (self._ready if isinstance(event, WorkerRecord) else self._waiting).append(event)
            elif not isinstance(event, WorkerRecord):
                self._others[number - 1].add(event)
            elif event.status == "failed":
                self._ready.append(event)
        while self._waiting and self._has_come(self._waiting[0]):
            self._settle_first()

    def merged_update(self) -> CenterUpdate:
        """Return one update for those of all servers, each of which has been heard."""
        ready, self._ready = self._ready, []
        waiting = sum(each.samples for each in self._waiting if isinstance(each, WindowRecord))
        folded = self._newest[0].samples_folded - waiting
        return structs.replace(self._newest[0], samples_folded=folded, events=tuple(ready))

    def flush(self) -> None:
        """Let nothing wait any more: a checkpoint of the first server has it."""
        while self._waiting:
            self._settle_first()

    def _has_come(self, event: Event) -> bool:
        """Whether an event of the first server waits for no other one."""
        return not isinstance(event, WindowRecord) or all(
            each.has(event.worker) for each in self._others
        )

    def _settle_first(self) -> None:
        event = self._waiting.popleft()
        if isinstance(event, WindowRecord):
            sizes = [each.take(event.worker) for each in self._others]
            event = structs.replace(
                event,
                bytes_up=event.bytes_up + sum(up for up, _ in sizes),
                bytes_down=event.bytes_down + sum(down for _, down in sizes),
            )
        self._ready.append(event)


class WindowQueue:
    """The windows that another server has folded, and the first one has not yet.

    Each server folds the windows of a worker in their order, and each of them once: trainers that
    leave out windows have one server. So it is enough to know how many of them it is ahead of the
    first one, or behind it.

    `ahead`: by how many windows of each worker it was ahead when the run went on; negative if
    behind.
    """

    def __init__(self, ahead: Mapping[int, int]) -> None:
        # Of each worker: the bytes up and down of such windows, and how many are still to come for
        # which the first server has not waited.
        self._sizes: defaultdict[int, deque[tuple[int, int]]] = defaultdict(deque)
        self._owed: Counter[int] = Counter()
        for worker, count in ahead.items():
            self._sizes[worker].extend([(0, 0)] * count)
            self._owed[worker] = max(0, -count)

    def add(self, event: Event) -> None:
        """Note that a window was folded; other events are the first server's."""
        if not isinstance(event, WindowRecord):
            return
        if self._owed[event.worker]:
            self._owed[event.worker] -= 1
        else:
            self._sizes[event.worker].append((event.bytes_up, event.bytes_down))

    def has(self, worker: int) -> bool:
        """Whether the worker's next window was folded."""
        return bool(self._sizes[worker])

    def take(self, worker: int) -> tuple[int, int]:
        """Return the bytes up and down of the worker's next window; do not wait for them."""
        if self._sizes[worker]:
            return self._sizes[worker].popleft()
        self._owed[worker] += 1
        return 0, 0


def lag(first: SavedLedger, other: SavedLedger) -> dict[int, int]:
    """Return how many more windows of each worker one server has answered than the first.

    When the run goes on, such windows are trained again: this server keeps what it has, and tells
    no record of them. Where the number is negative, the first one does.
    """
    return {
        seat: theirs.next_sequence - ours.next_sequence
        for seat, (ours, theirs) in enumerate(zip(first.seats, other.seats, strict=True))
    }
