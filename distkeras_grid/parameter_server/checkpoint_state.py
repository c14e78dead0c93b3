"""The server's state as a checkpoint has it, with its types."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
import numpy as np
from msgspec import structs

from distkeras_grid.array_tree import Packed, as_array, pack, unpack
from distkeras_grid.errors import DataError
from distkeras_grid.field_types import STATE_LIMIT, Count
from distkeras_grid.outliers import RunningStatistics
from distkeras_grid.parameter_server.messages import RowDigits
from distkeras_grid.spec import PreviousProgress

Rate = Annotated[float, msgspec.Meta(gt=0)]
Array = np.ndarray[Any, Any]


class _SavedStruct(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A part of a server's state, with its types."""


class SavedSeat(_SavedStruct, frozen=True):
    """What is known about a seat, independent of the attempt that has it."""

    rows: Count | None
    digest: RowDigits
    next_sequence: Count
    samples_folded: Count
    samples_dropped: Count
    tries: Count


class SavedLedger(_SavedStruct, frozen=True):
    """The ledger, without sessions and events."""

    version: Count
    samples_folded: Count
    samples_dropped: Count
    stop: bool
    learning_rate: Rate | None
    epochs_ended: Count
    ended: bool
    seats: list[SavedSeat]
    metrics: Annotated[list[float], msgspec.Meta(max_length=STATE_LIMIT // 8)]
    rates: list[tuple[Count, Rate]]


class SavedCenter(_SavedStruct, frozen=True):
    """The center, and the vectors of its rule."""

    centers: Annotated[list[Array], msgspec.Meta(min_length=1)]
    shared: list[Array]
    own: Annotated[list[list[Array]], msgspec.Meta(min_length=1)]


class SavedStep(_SavedStruct, frozen=True):
    """A step that workers carry out."""

    gradient: Array
    rate: Rate | None


class SavedReplay(_SavedStruct, frozen=True):
    """The shared optimizer's state, and the steps since."""

    version: Count
    state: Array | None
    steps: dict[str, SavedStep]

    def reaches(self, version: int) -> bool:
        """Whether there is each step from the state to a version of the center."""
        return all(str(number) in self.steps for number in range(self.version, version))


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
    outliers: RunningStatistics | None

    @classmethod
    def from_bytes(cls, data: Packed) -> SavedServer:
        """Read the state of a run's server; the checkpoint's digests say that it is as written.

        `data`: the packed tree, shape ``(bytes,)``, ``uint8``.
        """
        try:
            saved = msgspec.convert(unpack(data), cls, dec_hook=as_array)
        except msgspec.ValidationError as error:
            raise DataError(f"This is not the state of a parameter server: {error}.") from error
        if saved.replay is not None and not saved.replay.reaches(saved.ledger.version):
            raise DataError(
                "The checkpoint lacks steps of the replay of the shared optimizer: for too many "
                "rounds no worker had sent its state."
            )
        return saved


def trained_so_far(data: Packed) -> PreviousProgress:
    """Return what the workers of a saved server have trained.

    `data`: the packed tree of the server, shape ``(bytes,)``, ``uint8``.
    """
    ledger = SavedServer.from_bytes(data).ledger
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
    tree, own = unpack(data), SavedServer.from_bytes(data).center.own
    seat = SavedSeat(
        rows=None, digest="", next_sequence=0, samples_folded=0, samples_dropped=0, tries=0
    )
    tree["ledger"]["seats"] = [structs.asdict(seat) for _ in range(workers)]
    tree["center"]["own"] = [[np.zeros_like(each) for each in own[0]] for _ in range(workers)]
    tree["worker_states"] = {}
    return pack(tree)


def seats_in_order(states: Mapping[str, SavedWorkerState]) -> list[int]:
    """Return the seats whose states follow the server's own, in the order of the parts."""
    return sorted(map(int, states))
