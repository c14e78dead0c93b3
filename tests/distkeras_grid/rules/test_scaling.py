"""A chain of scalings is their product, each on its own side and with its own memory."""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest

from distkeras_grid.parameter_server.center import Center
from distkeras_grid.rules import CommitInfo, DeltaRule, RuleProperties, Scaling
from distkeras_grid.rules.scaling import Constant, DivideByStaleness, PerDistance, PerStep
from distkeras_grid.weights import sections_of_sizes

COMMIT = CommitInfo(seat=0, steps=4, samples=9, staleness=3)


@dataclass(frozen=True)
class LastGiven(Scaling):
    """A user's own: a commit counts by the center that its worker was given last."""

    seat_vectors: ClassVar[int] = 1

    def on_server(self, delta, commit, center, memory):  # noqa: ARG002
        np.multiply(delta, memory[0], out=delta)

    def save_base(self, center, memory):
        np.copyto(memory[0], center)


@dataclass(frozen=True)
class ChainRule(DeltaRule):
    name: ClassVar[str] = "chain"
    traits: ClassVar[RuleProperties] = replace(DeltaRule.traits, seat_vectors=2)
    chain: tuple[Scaling, ...] = ()

    @property
    def scalings(self):
        return self.chain


def moved(*chain, start=2.0):
    """How far one commit of a change by 8 moves the center."""
    rule = ChainRule(chain=chain)
    center = Center(rule, np.array([start], np.float32), sections_of_sizes(1), 1)
    before, payload = np.empty(1, np.float32), np.empty(1, np.float32)
    center.on_join(0, before)
    rule.compute_commit(before, before + 8, COMMIT.steps, payload)
    center.fold(payload, COMMIT)
    return float(center.vector[0]) - start


@pytest.mark.parametrize(
    ("chain", "expected"),
    [
        ((), 8),
        ((Constant(0.5),), 4),
        ((Constant(1.0),), 8),
        ((PerStep(),), 2),
        ((DivideByStaleness(),), 2),
        ((PerDistance(1.0),), 8),
        ((LastGiven(),), 16),
        ((PerStep(), Constant(0.5), DivideByStaleness()), 0.25),
        ((DivideByStaleness(), PerStep()), 0.5),
    ],
)
def test_a_chain_is_the_product_of_its_scalings(chain, expected):
    assert moved(*chain) == expected


def test_each_scaling_has_a_memory_of_its_own():
    """`PerDistance` uses its own as scratch space, which `LastGiven` must not see."""
    for chain in ((PerDistance(1.0), LastGiven()), (LastGiven(), PerDistance(1.0))):
        assert moved(*chain) == 16
