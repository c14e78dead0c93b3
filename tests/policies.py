"""A policy of which a test takes only some windows, or that does something between them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from distkeras_grid.feeding.batches import BatchSampler, Window


@dataclass(frozen=True)
class Chosen:
    """The windows that `choose` makes of a policy's."""

    policy: BatchSampler
    choose: Callable[[Iterator[Window]], Iterable[Window]]

    def windows(self, start: int = 0) -> Iterator[Window]:
        return iter(self.choose(self.policy.windows(start)))

    def steps_before(self, sequence: int) -> int:
        return self.policy.steps_before(sequence)


def first(policy: BatchSampler, count: int) -> Chosen:
    return Chosen(policy, lambda windows: islice(windows, count))
