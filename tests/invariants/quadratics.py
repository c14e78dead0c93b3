"""Simulated runs on quadratic losses, whose gradients are known.

With integers, rates and forces that are powers of 1/2 and few steps, all numbers are dyadic and
all sums exact: tests compare with ``==``.
"""

from __future__ import annotations

import numpy as np

from distkeras_grid.feeding.source import ArraySource
from distkeras_grid.records import WindowResult
from distkeras_grid.simulation.cluster import Cluster
from distkeras_grid.simulation.run import Simulation
from distkeras_grid.weights import Variable, WeightLayout
from tests.quadratic_learner import QuadraticLearner
from tests.specs import simulated_spec


class Watched(QuadraticLearner):
    """Adds up by how much its windows have moved the weights, and keeps the last such move."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.moved = np.zeros_like(self.weights())
        self.last = self.moved.copy()

    def run(self, before, blocks, after):
        result = super().run(before, blocks, after)
        self.last = after - before
        self.moved += self.last
        return result


class ConstantGradient(Watched):
    """Plain SGD on ``f(x) = sum x``: the gradient is 1 everywhere."""

    def __init__(self, start, learning_rate):
        super().__init__(start, 0.0, learning_rate)
        self.rate = learning_rate

    def run(self, before, blocks, after):
        blocks = list(blocks)
        steps = sum(block.steps for block in blocks)
        np.subtract(before, steps * self.rate, out=after)
        self.last = after - before
        self.moved += self.last
        return WindowResult(steps, sum(block.samples for block in blocks), 1.0, {})


def build(
    rule,
    rows,
    *,
    start=(0.0,),
    curvature=1.0,
    rate=0.5,
    momentum=0.0,
    batch=1,
    window=1,
    epochs=1,
    quorum=1.0,
    dtype=np.float64,
    learners=None,
    shuffle=False,
    compression=None,
    **cluster,
):
    """A run that has not begun; `rows` are each worker's targets, ``(rows, size)``."""
    seats = [ArraySource([np.asarray(r, dtype)], [np.zeros(len(r))]) for r in rows]
    if learners is None:
        learners = [
            Watched(np.array(start, dtype), curvature, rate, momentum, rule.traits.local_steps)
            for _ in seats
        ]
    if compression is not None:
        # A kernel: of one dimension all would be sent.
        for learner in learners:
            learner.layout = WeightLayout((Variable("x", (learner.layout.size, 1)),))
    terms = {"quorum": quorum, "shuffle": shuffle, "compression": compression}
    terms |= {"batch_size": batch, "window": window, "epochs": epochs}
    spec = simulated_spec(rule, learners, seats, **terms)
    simulation = Simulation(
        Cluster(len(seats), **{"batch_seconds": 1.0, **cluster}),
        spec,
        learners.__getitem__,
        seats,
    )
    simulation.learners = learners
    return simulation


def trained(*args, **kwargs):
    simulation = build(*args, **kwargs)
    simulation.run()
    return simulation


def held(simulation):
    """The variable of each worker: what its window started from, or the next one will."""
    return [worker.before for worker in simulation.workers]


def fixed(target, steps):
    return [np.atleast_1d(target)] * steps


def descend(x, targets, *, curvature=1.0, rate=0.5, momentum=0.0):
    """Plain SGD, or Keras' momentum, one step a target."""
    x = np.array(x)
    velocity = np.zeros_like(x)
    for target in targets:
        velocity = momentum * velocity - rate * (curvature * (x - target))
        x = x + velocity
    return x
