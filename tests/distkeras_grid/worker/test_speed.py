from __future__ import annotations

import numpy as np

from distkeras_grid.rows import Block
from distkeras_grid.simulation.learners import QuadraticLearner
from distkeras_grid.worker import speed


class Slow(QuadraticLearner):
    """Needs a warm-up, and a while for each window after it."""

    def __init__(self, seconds):
        super().__init__(np.ones(3, np.float32), np.ones(3), 0.1, 0.0)
        self.clock, self.windows, self._seconds = 0.0, 0, iter(seconds)

    def warm_up(self, _):
        self.warm = True
        return 0.0

    def run(self, before, blocks, after):
        assert self.warm
        self.windows += 1
        self.clock += next(self._seconds)
        return super().run(before, blocks, after)


def measured(monkeypatch, seconds):
    engine = Slow(seconds)
    monkeypatch.setattr(speed.time, "perf_counter", lambda: engine.clock)
    x = np.zeros((2, 4, 3), np.float32)
    return speed.time_windows(engine, Block((x,), (x[..., 0],))), engine.windows


def test_it_is_the_median_of_windows_after_the_warm_up(monkeypatch):
    assert measured(monkeypatch, [9.0, 0.25, 0.5]) == (0.5, speed.WINDOWS)


def test_short_windows_are_repeated(monkeypatch):
    assert measured(monkeypatch, [0.25] * 100) == (0.25, 6)
