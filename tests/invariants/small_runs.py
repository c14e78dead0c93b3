"""Runs of a few windows, and what their workers train with; for tests of faults."""

from __future__ import annotations

import numpy as np

from distkeras_grid.rules import DeepGradientCompression, build_rule
from distkeras_grid.spec import LayoutSpec
from distkeras_grid.weights import Variable, WeightLayout
from tests.quadratic_learner import QuadraticLearner

SIZE, SEAT_ROWS, BATCH, EPOCHS, WORKERS = 4, 6, 2, 2, 3
WINDOWS = SEAT_ROWS // BATCH
DGC = DeepGradientCompression(0.5, warm_up_epochs=0)


class NormedLearner(QuadraticLearner):
    """A quadratic loss, and a moving mean of the rows, as batch normalization keeps it."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        half = SIZE // 2
        self.layout = WeightLayout((Variable("x", (half,)),), (Variable("mean", (SIZE - half,)),))

    def run(self, before, blocks, after):
        means = []

        def seen():
            for block in blocks:
                means.extend(np.mean(targets, axis=0) for targets in block.x[0])
                yield block

        result = super().run(before, seen(), after)
        after[self._moving] = 0.75 * before[self._moving] + 0.25 * np.mean(means, 0)[self._moving]
        return result

    def apply(self, gradient, weights):
        """Statistics come as they are; the rest is a gradient."""
        told = gradient[self._moving].copy()
        super().apply(gradient, weights)
        weights[self._moving] = told

    @property
    def _moving(self):
        return self.layout.sections[1].span


def learner_of(rule, kind):
    """What the workers of a rule train with: "Adam" has a state of its own, as momentum is."""
    momentum = 0.0 if rule.traits.plain_sgd or kind != "Adam" else 0.9
    learner = NormedLearner if kind == "BatchNorm" else QuadraticLearner
    start = np.ones(SIZE, np.float32)
    return learner(start, 1.0, 0.1, momentum, local_steps=rule.traits.local_steps)


def terms_of(family, kind, **limits):
    """Return the fields of the run of a family: a rule, its numbers, the workers, and changes."""
    name, parameters, workers, changes = family
    rule = build_rule(name, parameters)
    learner = learner_of(rule, kind)
    shared = learner.step_section if rule.traits.steps_on_workers else None
    return {
        "rule": rule,
        "layout": LayoutSpec.of(learner.layout, shared, worker_state_limit=1 << 16),
        "rows": SEAT_ROWS * workers,
        "workers": workers,
        "epochs": EPOCHS,
        "batch_size": BATCH,
        "seed": 4,
        "compression": DGC if kind == "DGC" else None,
        **limits,
        **changes,
    }


def victim_of(point, workers):
    """Return who is struck: of a round's workers the first one is asked to hand over."""
    return 0 if point == "hand-over" else min(1, workers - 1)
