"""The windows of a worker that trains on local sets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from distkeras_grid.feeding.batches import EpochSampler
from distkeras_grid.local_sets.sampler import TileSampler
from distkeras_grid.spec import ScheduleSpec

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True)
class LocalSetSampler(EpochSampler):
    """Windows with one local training set in each epoch; an epoch is an iteration.

    Positions are tile numbers in the pool. They may exceed `rows`, which is the size of a set.
    """

    drawing: TileSampler  # The local sets of the run

    @classmethod
    def of(cls, drawing: TileSampler, schedule: ScheduleSpec, seat: int) -> Self:
        """Return the policy of a seat according to a run's schedule."""
        return cls(
            rows=drawing.spec.local_train,
            batch_size=schedule.batch_size,
            window=schedule.window,
            epochs=schedule.epochs,
            seed=schedule.seed,
            seat=seat,
            drawing=drawing,
        )

    def _order(self, sample: NDArray[np.int64] | None, epoch: int) -> NDArray[np.int64]:  # noqa: ARG002
        return self.drawing.train(epoch - 1, self.seat)
