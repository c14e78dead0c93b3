"""When the server's state is taken for a checkpoint, and how it is read back from one.

The driver asks for a checkpoint. The server then asks each active worker for its state, and takes
its own state when the last answer has arrived. In rounds, all answers arrive between the same two
rounds, so the states of center and workers belong to the same moment. Without rounds, a worker's
windows may have been folded after its answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any

import msgspec
import numpy as np
from msgspec import structs

from distkeras_grid.array_tree import Packed, as_array, pack, unpack
from distkeras_grid.errors import DataError
from distkeras_grid.field_types import STATE_LIMIT, Count
from distkeras_grid.outliers import RunningStatistics
from distkeras_grid.parameter_server.messages import RowDigits
from distkeras_grid.rules.finite_checks import is_finite
from distkeras_grid.spec import PreviousProgress, RunSpec

Rate = Annotated[float, msgspec.Meta(gt=0)]
Array = np.ndarray[Any, Any]


class CheckpointBarrier:
    """The answers that a checkpoint waits for."""

    def __init__(self) -> None:
        self.number = 0
        self.awaited: set[int] = set()
        self.pending = False
        # Awaited seats that were asked after the checkpoint was requested.
        self._asked: set[int] = set()

    def begin(self, seats: Iterable[int]) -> None:
        """Wait for the answers of these seats."""
        self.pending, self.awaited = True, set(seats)
        self._asked.clear()

    def asks(self, seat: int) -> bool:
        """Whether the reply to a seat must ask for its state; if so, record that it was asked."""
        if seat in self.awaited:
            self._asked.add(seat)
        return seat in self.awaited

    def answered(self, seat: int) -> None:
        """Record the answer of a seat; one to an earlier question does not count."""
        if seat in self._asked:
            self.awaited.discard(seat)

    def lost(self, seat: int) -> None:
        """Record that a seat will not answer."""
        self.awaited.discard(seat)

    @property
    def complete(self) -> bool:
        """Whether the server's state is to be taken now."""
        return self.pending and not self.awaited

    def take(self) -> None:
        """Record that the state is taken."""
        self.number += 1
        self.pending = False


class _SavedStruct(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A part of a server's state, with its types."""


class SavedSeat(_SavedStruct, frozen=True):
    """What is known about a seat, independent of the attempt that has it."""

    rows: Count | None
    digest: RowDigits
    next_sequence: Count
    samples_folded: Count
    samples_dropped: Count
    tries: Count = 0


class SavedLedger(_SavedStruct, frozen=True):
    """The ledger, without sessions and events.

    Older checkpoints have no `metrics`, or no `rates`.
    """

    version: Count
    samples_folded: Count
    samples_dropped: Count
    stop: bool
    learning_rate: Rate | None
    epochs_ended: Count
    ended: bool
    seats: list[SavedSeat]
    metrics: Annotated[list[float], msgspec.Meta(max_length=STATE_LIMIT // 8)] | None = None
    rates: list[tuple[Count, Rate]] = []


class SavedCenter(_SavedStruct, frozen=True):
    """The center, and the vectors of its rule."""

    centers: list[Array]
    shared: list[Array]
    own: list[list[Array]]


class SavedStep(_SavedStruct, frozen=True):
    """A step that workers carry out."""

    gradient: Array
    rate: Rate | None


class SavedReplay(_SavedStruct, frozen=True):
    """The shared optimizer's state, and the steps since."""

    version: Count
    state: Array | None
    steps: dict[str, SavedStep]


class SavedWorkerState(_SavedStruct, frozen=True):
    """When a seat's worker sent its state; the state itself is another part."""

    sequence: Count
    version: Count


class SavedServer(_SavedStruct, frozen=True):
    """The state of a server between two executions of a run.

    `outliers` is what was seen of folded commits, where they are measured.
    """

    ledger: SavedLedger
    center: SavedCenter
    replay: SavedReplay | None
    worker_states: dict[str, SavedWorkerState]
    outliers: RunningStatistics | None = None

    @classmethod
    def from_bytes(cls, data: Packed, spec: RunSpec) -> SavedServer:
        """Read the state of a run's server, and compare it with the run.

        `data`: the packed tree, shape ``(bytes,)``, ``uint8``.
        """
        saved = cls._of(unpack(data))
        saved._check(spec)
        return saved

    @classmethod
    def _of(cls, tree: Mapping[str, Any]) -> SavedServer:
        try:
            saved = msgspec.convert(tree, cls, dec_hook=as_array)
        except msgspec.ValidationError as error:
            raise DataError(f"This is not the state of a parameter server: {error}.") from error
        if not saved.center.own:
            raise DataError("The state of a parameter server has no vectors of workers.")
        return saved

    def _check(self, spec: RunSpec) -> None:
        ledger, earlier = (
            self.ledger,
            spec.schedule.earlier or PreviousProgress(epochs=0, version=0, folded=0),
        )
        sums = [
            sum(getattr(seat, name) for seat in ledger.seats)
            for name in ("samples_folded", "samples_dropped")
        ]
        numbers = {
            "workers": len(ledger.seats) == spec.workers,
            "samples": [earlier.folded + sums[0], earlier.dropped + sums[1]]
            == [ledger.samples_folded, ledger.samples_dropped],
            "center": self._centers_fit(spec.size),
            "rows": sum(seat.rows or 0 for seat in ledger.seats) <= spec.rows,
            "epochs": spec.schedule.epochs_before <= ledger.epochs_ended <= spec.epochs,
            "states of workers": all(
                self._fits(seat, state) for seat, state in self.worker_states.items()
            ),
            "replay": self.replay is None or self._replays(self.replay, spec),
        }
        if wrong := [name for name, right in numbers.items() if not right]:
            raise DataError(
                f"The state of a parameter server is not that of this run: its {', '.join(wrong)} "
                "differ."
            )

    def _centers_fit(self, size: int) -> bool:
        """Whether there is a center, and each number that a commit is added to is finite."""
        center = self.center
        vectors = [*center.shared, *(each for own in center.own for each in own)]
        return (
            bool(center.centers)
            and all(_is(each, (size,), np.float32) for each in center.centers)
            and all(each.dtype == np.float32 for each in vectors)
            and all(map(is_finite, [*center.centers, *vectors]))
        )

    def _fits(self, name: str, state: SavedWorkerState) -> bool:
        if not (name.isascii() and name.isdigit() and int(name) < len(self.ledger.seats)):
            return False
        seat = self.ledger.seats[int(name)]
        return state.sequence <= seat.next_sequence and state.version <= self.ledger.version

    def _replays(self, replay: SavedReplay, spec: RunSpec) -> bool:
        size = spec.layout.state_section.nbytes
        steps = {name: step.gradient for name, step in replay.steps.items()}
        return (
            replay.version <= self.ledger.version
            and (replay.state is None or _is(replay.state, (size,), np.uint8))
            and all(name.isascii() and name.isdigit() for name in steps)
            and all(_is(gradient, (spec.size,), np.float32) for gradient in steps.values())
            and set(map(int, steps)) >= set(range(replay.version, self.ledger.version))
        )


def trained_so_far(data: Packed) -> PreviousProgress:
    """Return what the workers of a saved server have trained.

    `data`: the packed tree of the server, shape ``(bytes,)``, ``uint8``.
    """
    ledger = SavedServer._of(unpack(data)).ledger
    return PreviousProgress(
        epochs=ledger.epochs_ended,
        version=ledger.version,
        folded=ledger.samples_folded,
        dropped=ledger.samples_dropped,
    )


def repartition(data: Packed, workers: int) -> Packed:
    """Return the state of a saved server for another number of workers.

    Center, version, counts and the shared vectors of the rule stay. Nothing is left of the seats:
    neither cursors, nor states that workers keep, nor vectors that the rule keeps for a seat.

    `data`: the packed tree of the server, shape ``(bytes,)``, ``uint8``.
    """
    tree = unpack(data)
    own = SavedServer._of(tree).center.own
    seat = SavedSeat(rows=None, digest="", next_sequence=0, samples_folded=0, samples_dropped=0)
    tree["ledger"]["seats"] = [structs.asdict(seat) for _ in range(workers)]
    tree["center"]["own"] = [[np.zeros_like(each) for each in own[0]] for _ in range(workers)]
    tree["worker_states"] = {}
    return pack(tree)


def _is(array: Array, shape: tuple[int, ...], dtype: type) -> bool:
    return (array.shape, array.dtype) == (shape, np.dtype(dtype))


def seats_in_order(states: Mapping[str, SavedWorkerState]) -> list[int]:
    """Return the seats whose states follow the server's own, in the order of the parts."""
    return sorted(map(int, states))
