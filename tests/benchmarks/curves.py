"""Accuracy over samples and seconds: what both sides of a race are judged by."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from pathlib import Path
from statistics import mean

from distkeras_grid.engine.keras_model import set_flat_weights
from distkeras_grid.weights import Vector
from tests.benchmarks import fashion
from tests.benchmarks.local import Point
from tests.benchmarks.nets import NETS

#: Epochs that each side trains, and points of its curve in each.
EPOCHS, MARKS = 5, 4
#: How far below the best of ``fit``'s last two epochs the target lies.
BELOW = 0.003


class Examiner:
    """Evaluates weights of one net on the images of a split, apart from all clocks."""

    def __init__(self, net: str, folder: Path, split: str) -> None:
        self._model = NETS[net].build(0)
        rows = fashion.read(folder, split)
        self._images, self._labels = rows.scaled(NETS[net].shape), rows.labels

    def accuracy(self, weights: Vector) -> float:
        """Return the accuracy of flat weights."""
        set_flat_weights(self._model, weights)
        predicted = self._model.predict(self._images, batch_size=500, verbose=0)
        return float((predicted.argmax(axis=1) == self._labels).mean())


class Curve:
    """Accuracies of one run, each computed when it is asked for."""

    def __init__(self, examiner: Examiner, points: Sequence[Point]) -> None:
        self._examiner = examiner
        self._points = points
        self._known: dict[int, float] = {}

    def accuracy(self, mark: int) -> float:
        """Return the accuracy at a mark, from 1."""
        if mark not in self._known:
            self._known[mark] = self._examiner.accuracy(self.weights(mark))
        return self._known[mark]

    def weights(self, mark: int) -> Vector:
        """Return the weights at a mark, from 1."""
        return self._points[mark - 1][2]

    @property
    def target(self) -> float:
        """What the other side has to reach, if this is ``fit``."""
        return max(self.accuracy(epoch * MARKS) for epoch in (EPOCHS - 1, EPOCHS)) - BELOW

    @property
    def epoch_seconds(self) -> float:
        """Seconds of an epoch, on average."""
        return self._points[-1][1] / self._epochs

    @property
    def _epochs(self) -> float:
        return len(self._points) / MARKS

    def reach(self, target: float) -> tuple[float, float]:
        """Return epochs and seconds at the first mark that has the accuracy; infinite if none."""
        rows = self._points[-1][0] / self._epochs
        for mark, (samples, seconds, _) in enumerate(self._points, 1):
            if self.accuracy(mark) >= target:
                return samples / rows, seconds
        return inf, inf


def mean_accuracies(curves: Sequence[Curve]) -> list[float]:
    """Return the mean accuracy of all seeds after each epoch."""
    return [
        mean(curve.accuracy(epoch * MARKS) for curve in curves) for epoch in range(1, EPOCHS + 1)
    ]
