"""Time to accuracy: when the center is as good as ``fit`` is after its third epoch."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from math import inf
from pathlib import Path
from statistics import mean, median

from distkeras_grid.engine.keras_model import set_flat_weights
from distkeras_grid.weights import Vector
from tests.benchmarks import fashion
from tests.benchmarks.epochs import WINDOW, Bound, start_fit
from tests.benchmarks.local import Point
from tests.benchmarks.nets import NETS
from tests.benchmarks.spark_runs import WORKERS, Choice, Cluster

EPOCHS, TARGET_EPOCH, MARKS = 5, 3, 4
# What the README recommends, and its asynchronous sister.
RECOMMENDED = (
    Choice("AveragingTrainer", 0, {"communication_window": WINDOW}),
    Choice("DOWNPOUR", 0, {"communication_window": WINDOW}),
)
DEFAULTS = (Choice("DOWNPOUR", 0), Choice("ADAG", 0), Choice("AEASGD", 0))


class Curve:
    """Accuracies on the test images, each computed when it is asked for.

    Parameters
    ----------
    examiner : Examiner
        Computes them.
    points : sequence
        Samples, seconds and weights at each mark.
    """

    def __init__(self, examiner: Examiner, points: Sequence[Point]) -> None:
        self._examiner = examiner
        self._points = points
        self._known: dict[int, float] = {}

    def accuracy(self, mark: int) -> float:
        """Return the accuracy at a mark, from 1."""
        if mark not in self._known:
            self._known[mark] = self._examiner.accuracy(self._points[mark - 1][2])
        return self._known[mark]

    @property
    def last(self) -> float:
        """The accuracy at the end."""
        return self.accuracy(len(self._points))

    @property
    def epoch_seconds(self) -> float:
        """Seconds of an epoch, on average."""
        return self._points[-1][1] / EPOCHS

    def reach(self, target: float) -> tuple[float, float]:
        """Return epochs and seconds at the first mark that has the accuracy; infinite if none."""
        rows = self._points[-1][0] / EPOCHS
        for mark, (samples, seconds, _) in enumerate(self._points, 1):
            if self.accuracy(mark) >= target:
                return samples / rows, seconds
        return inf, inf


class Examiner:
    """Evaluates weights of one net on the test images, apart from all clocks."""

    def __init__(self, net: str, folder: Path) -> None:
        self._model = NETS[net].build(0)
        rows = fashion.read(folder, "test")
        self._images, self._labels = rows.scaled(NETS[net].shape), rows.labels

    def accuracy(self, weights: Vector) -> float:
        """Return the accuracy of flat weights."""
        set_flat_weights(self._model, weights)
        predicted = self._model.predict(self._images, batch_size=500, verbose=0)
        return float((predicted.argmax(axis=1) == self._labels).mean())


@dataclass(frozen=True)
class Race:
    """One trainer against ``fit``, with one seed."""

    fit: Curve
    ours: Curve
    bound_seconds: float

    @property
    def target(self) -> float:
        return self.fit.accuracy(TARGET_EPOCH * MARKS)

    @property
    def reach_of_fit(self) -> tuple[float, float]:
        """Epochs and seconds until ``fit`` first has the target."""
        return self.fit.reach(self.target)

    @property
    def reach_of_ours(self) -> tuple[float, float]:
        """Epochs and seconds until the center first has it."""
        return self.ours.reach(self.target)

    @property
    def ratio(self) -> float:
        """Time of ``fit`` to the target, by ours."""
        return self.reach_of_fit[1] / self.reach_of_ours[1]

    @property
    def bound(self) -> float:
        """The ratio that equal accuracy at each sample and the bound's speed would give."""
        return self.fit.epoch_seconds / self.bound_seconds


def mean_accuracies(curves: Sequence[Curve]) -> list[float]:
    """Return the mean accuracy of all seeds after each epoch."""
    return [
        mean(curve.accuracy(epoch * MARKS) for curve in curves) for epoch in range(1, EPOCHS + 1)
    ]


def epochs_to(target: float, accuracies: Sequence[float]) -> float:
    """Return the epochs after which a curve first has the target, on lines between its points.

    Less noisy than the first mark that has it: the target is a point of ``fit``'s own jumpy
    curve, so ``fit`` tends to have touched it before.
    """
    if accuracies[0] >= target:
        return 1.0
    for epoch, (before, after) in enumerate(pairwise(accuracies), 1):
        if after >= target:
            return epoch + (target - before) / (after - before)
    return inf


def measure_accuracy(net: str, batch: int, folder: Path, cluster: Cluster, seeds: int) -> None:
    """Print the table of one net and one batch size of ``fit``."""
    divided = batch // WORKERS
    print(
        f"\n{NETS[net].title}: time to the accuracy of fit's epoch {TARGET_EPOCH}, "
        f"fit with batch {batch}, {WORKERS} workers with batch {divided} each"
    )
    examiner = Examiner(net, folder)
    races: dict[str, list[Race]] = {}
    with ExitStack() as stack:
        fit = start_fit(stack, net, folder, batch)
        bound = stack.enter_context(Bound(net, folder, divided))
        for seed in range(1, seeds + 1):
            fit.ask("curve", seed, EPOCHS, MARKS)
            theirs = Curve(examiner, fit.answer())
            bound_seconds = bound.epoch()
            print(
                f"  seed {seed}, seconds of an epoch: fit {theirs.epoch_seconds:.2f}, "
                f"bound {bound_seconds:.2f}",
                end="",
            )
            for choice in RECOMMENDED + (DEFAULTS if seed == 1 else ()):
                chosen = Choice(choice.trainer, divided, choice.arguments)
                run = cluster.curve(chosen, net, epochs=EPOCHS, seed=seed, marks=MARKS)
                title = f"{choice.trainer}, window {run.window}"
                print(f", {title} {run.epoch_seconds:.2f}", end="", flush=True)
                race = Race(theirs, Curve(examiner, run.points), bound_seconds)
                races.setdefault(title, []).append(race)
            print()
    _print_races(races)


def _print_races(races: dict[str, list[Race]]) -> None:
    print(
        f"  {'medians; accuracy: means':<30}{'epochs to it':>18}{'seconds to it':>18}"
        f"{'':>25}{'after 5 epochs':>18}\n"
        f"  {'':<24}{'seeds':>6}{'fit':>9}{'ours':>9}{'fit':>9}{'ours':>9}"
        f"{'fit/ours':>10}{'bound':>7}{'share':>8}{'fit':>9}{'ours':>9}"
    )
    for title, of_title in races.items():
        reached = [(*race.reach_of_fit, *race.reach_of_ours) for race in of_title]
        columns = (median(values) for values in zip(*reached, strict=True))
        epochs, seconds, our_epochs, our_seconds = columns
        ratio = median(race.ratio for race in of_title)
        bound = median(race.bound for race in of_title)
        print(
            f"  {title:<24}{len(of_title):6d}{epochs:9.2f}{our_epochs:9.2f}"
            f"{seconds:9.2f}{our_seconds:9.2f}{ratio:10.2f}{bound:7.2f}{ratio / bound:8.0%}"
            f"{mean(race.fit.last for race in of_title):9.4f}"
            f"{mean(race.ours.last for race in of_title):9.4f}",
            flush=True,
        )
    print("  mean curves, linear between epochs: accuracy after each, and the way to fit's epoch 3")
    _print_mean_curve("fit", [race.fit for race in next(iter(races.values()))])
    for title, of_title in races.items():
        _print_mean_curve(title, [race.ours for race in of_title], of_title)


def _print_mean_curve(title: str, curves: list[Curve], races: Sequence[Race] = ()) -> None:
    accuracies = mean_accuracies(curves)
    told = " ".join(f"{value:.4f}" for value in accuracies)
    if races:
        target = mean_accuracies([race.fit for race in races])[TARGET_EPOCH - 1]
        epochs = epochs_to(target, accuracies)
        ratio = median(race.fit.epoch_seconds for race in races) * TARGET_EPOCH
        ratio /= median(race.ours.epoch_seconds for race in races) * epochs
        bound = median(race.bound for race in races)
        told += f"   {epochs:.2f} epochs, fit/ours {ratio:.2f}, share {ratio / bound:.0%}"
    print(f"  {title:<24} {told}", flush=True)
