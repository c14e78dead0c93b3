"""Time to accuracy: both sides with the same batch, ours divided by the workers.

Of the 60,000 training rows 50,000 are trained. The other 10,000 choose the target, the best of
``fit``'s epochs 4 and 5 less 0.3 points, and tell when a side first has it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median

from tests.benchmarks.curves import EPOCHS, MARKS, Curve, Examiner, mean_accuracies
from tests.benchmarks.epochs import WINDOW, Bound, start_fit
from tests.benchmarks.nets import NETS
from tests.benchmarks.spark_runs import WORKERS, Choice, Cluster

# What the README recommends, and its asynchronous sister.
RECOMMENDED = (
    Choice("AveragingTrainer", 0, {"communication_window": WINDOW}),
    Choice("DOWNPOUR", 0, {"communication_window": WINDOW}),
)


@dataclass(frozen=True)
class Race:
    """One trainer against ``fit``, with one seed."""

    fit: Curve
    ours: Curve
    bound_seconds: float

    @property
    def reach_of_fit(self) -> tuple[float, float]:
        """Epochs and seconds until ``fit`` first has the target."""
        return self.fit.reach(self.fit.target)

    @property
    def reach_of_ours(self) -> tuple[float, float]:
        """Epochs and seconds until the center first has it."""
        return self.ours.reach(self.fit.target)

    @property
    def ratio(self) -> float:
        """Time of ``fit`` to the target, by ours."""
        return self.reach_of_fit[1] / self.reach_of_ours[1]

    @property
    def bound(self) -> float:
        """The ratio that equal accuracy at each sample and the bound's speed would give."""
        return self.fit.epoch_seconds / self.bound_seconds


def measure_accuracy(net: str, batch: int, folder: Path, cluster: Cluster, seeds: int) -> None:
    """Print the table of one net and one batch size of ``fit``."""
    divided = batch // WORKERS
    print(
        f"\n{NETS[net].title}: time to the best of fit's epochs 4 and 5 less 0.3 points, fit with "
        f"batch {batch}, {WORKERS} workers with batch {divided} each, 50,000 rows"
    )
    examiner = Examiner(net, folder, "validation")
    races: dict[str, list[Race]] = {}
    with ExitStack() as stack:
        fit = start_fit(stack, net, folder, batch, "fitting")
        bound = stack.enter_context(Bound(net, folder, divided, "fitting"))
        for seed in range(1, seeds + 1):
            fit.ask("curve", seed, EPOCHS, MARKS)
            theirs = Curve(examiner, fit.answer())
            bound_seconds = bound.epoch()
            print(
                f"  seed {seed}, seconds of an epoch: fit {theirs.epoch_seconds:.2f}, "
                f"bound {bound_seconds:.2f}",
                end="",
            )
            for choice in RECOMMENDED:
                chosen = Choice(choice.trainer, divided, choice.arguments)
                run = cluster.curve(chosen, net, epochs=EPOCHS, seed=seed, marks=MARKS)
                print(f", {choice.trainer} {run.epoch_seconds:.2f}", end="", flush=True)
                race = Race(theirs, Curve(examiner, run.points), bound_seconds)
                races.setdefault(choice.trainer, []).append(race)
            print()
    _print_races(races, Examiner(net, folder, "test"))


def _print_races(races: dict[str, list[Race]], tested: Examiner) -> None:
    print(
        f"  {'medians; accuracy: means':<24}{'epochs to it':>18}{'seconds to it':>18}"
        f"{'':>25}{'test after 5':>18}\n"
        f"  {'':<24}{'fit':>9}{'ours':>9}{'fit':>9}{'ours':>9}"
        f"{'fit/ours':>10}{'bound':>7}{'share':>8}{'fit':>9}{'ours':>9}"
    )
    for title, of_title in races.items():
        reached = [(*race.reach_of_fit, *race.reach_of_ours) for race in of_title]
        columns = (median(values) for values in zip(*reached, strict=True))
        epochs, seconds, our_epochs, our_seconds = columns
        ratio = median(race.ratio for race in of_title)
        bound = median(race.bound for race in of_title)
        print(
            f"  {title:<24}{epochs:9.2f}{our_epochs:9.2f}"
            f"{seconds:9.2f}{our_seconds:9.2f}{ratio:10.2f}{bound:7.2f}{ratio / bound:8.0%}"
            f"{_last([race.fit for race in of_title], tested):9.4f}"
            f"{_last([race.ours for race in of_title], tested):9.4f}",
            flush=True,
        )
        print(f"  {'':<24} each seed: " + " ".join(f"{race.ratio:.2f}" for race in of_title))
    print("  mean accuracies after each epoch")
    for title, curves in (
        ("fit", [race.fit for race in next(iter(races.values()))]),
        *((title, [race.ours for race in of_title]) for title, of_title in races.items()),
    ):
        accuracies = " ".join(f"{value:.4f}" for value in mean_accuracies(curves))
        print(f"  {title:<24} {accuracies}", flush=True)


def _last(curves: Sequence[Curve], examiner: Examiner) -> float:
    return mean(examiner.accuracy(curve.weights(EPOCHS * MARKS)) for curve in curves)
