"""Time to accuracy, each side with the batch size that suits it best.

The target is that of ``fit`` with batch 32. One seed looks for each side's best size, the others
decide.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import cache, partial
from math import inf
from pathlib import Path
from statistics import median

from tests.benchmarks.accuracy import RECOMMENDED
from tests.benchmarks.curves import EPOCHS, MARKS, Curve, Examiner
from tests.benchmarks.epochs import start_fit
from tests.benchmarks.local import Side
from tests.benchmarks.nets import NETS
from tests.benchmarks.spark_runs import WORKERS, Choice, Cluster

REFERENCE = 32
SIZES = (16, 32, 64, 128, 256, 512)
SEARCH = 1

# A seed -> the curve of a run.
Run = Callable[[int], Curve]


def measure_own_batch(net: str, folder: Path, cluster: Cluster, seeds: int) -> None:
    """Print the table of one net."""
    print(
        f"\n{NETS[net].title}: seconds to the target of fit with batch {REFERENCE}, each side at "
        "its own best batch; ours is that of all workers together"
    )
    examiner = Examiner(net, folder, "validation")
    with ExitStack() as stack:
        sides = {"fit": {size: _fit(stack, net, folder, size, examiner) for size in SIZES}}
        for choice in RECOMMENDED:
            sides[choice.trainer] = {
                size: cache(partial(_ours, choice, size, net, cluster, examiner)) for size in SIZES
            }
        target = sides["fit"][REFERENCE](SEARCH).target
        print(f"  target {target:.4f}; seed {SEARCH}, batch " + ", ".join(map(str, SIZES)))
        best = {title: _best(title, runs, target) for title, runs in sides.items()}
        reached: dict[str, list[float]] = {title: [] for title in sides}
        for seed in range(SEARCH + 1, SEARCH + 1 + seeds):
            for title, run in best.items():
                reached[title].append(_seconds(run(seed), target))
    _print_reached(reached)


def epochs_of(size: int) -> int:
    """Return the epochs of a run: larger batches need more, which are quicker."""
    return EPOCHS if size <= 64 else 2 * EPOCHS


def _fit(stack: ExitStack, net: str, folder: Path, size: int, examiner: Examiner) -> Run:
    fit = start_fit(stack, net, folder, size, "fitting")
    return cache(partial(_curve_of_fit, fit, size, examiner))


def _curve_of_fit(fit: Side, size: int, examiner: Examiner, seed: int) -> Curve:
    fit.ask("curve", seed, epochs_of(size), MARKS)
    return Curve(examiner, fit.answer())


def _ours(
    choice: Choice, size: int, net: str, cluster: Cluster, examiner: Examiner, seed: int
) -> Curve:
    chosen = Choice(choice.trainer, size // WORKERS, choice.arguments)
    run = cluster.curve(chosen, net, epochs=epochs_of(size), seed=seed, marks=MARKS)
    return Curve(examiner, run.points)


def _seconds(curve: Curve, target: float) -> float:
    return curve.reach(target)[1]


def _best(title: str, runs: dict[int, Run], target: float) -> Run:
    """Return the runs of the size that has the target first."""
    seconds = {size: _seconds(run(SEARCH), target) for size, run in runs.items()}
    best = min(seconds, key=seconds.__getitem__)
    each = "".join(f"{value:8.2f}" for value in seconds.values())
    print(f"  {title:<20}{each}   best {best}", flush=True)
    return runs[best]


def _print_reached(reached: dict[str, list[float]]) -> None:
    print("  further seeds at the best size")
    for title, seconds in reached.items():
        each = "".join(f"{value:8.2f}" for value in seconds)
        print(f"  {title:<20}{each}   median {median(seconds):.2f}")
    fit = reached.pop("fit")
    for title, seconds in reached.items():
        # Where neither side has the target there is no ratio.
        pairs = [pair for pair in zip(fit, seconds, strict=True) if min(pair) < inf]
        ratios = [theirs / ours for theirs, ours in pairs]
        each = " ".join(f"{ratio:.2f}" for ratio in ratios)
        middle = f"{median(ratios):.2f}" if ratios else "none"
        print(f"  fit / {title}: median {middle}, each seed {each}", flush=True)
