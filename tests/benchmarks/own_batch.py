"""Time to accuracy, each side with the batch size that suits it best.

The target is that of ``fit`` with batch 32. One seed looks for each side's best size, the others
decide.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
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

# A seed -> seconds to the target.
Reach = Callable[[int], float]


def measure_own_batch(net: str, folder: Path, cluster: Cluster, seeds: int) -> None:
    """Print the table of one net."""
    print(
        f"\n{NETS[net].title}: seconds to the target of fit with batch {REFERENCE}, each side at "
        "its own best batch; ours is that of all workers together"
    )
    examiner = Examiner(net, folder, "validation")
    with ExitStack() as stack:
        fits = {size: start_fit(stack, net, folder, size, "fitting") for size in SIZES}
        target = _curve(fits[REFERENCE], examiner, 1).target
        sides: dict[str, dict[int, Reach]] = {
            "fit": {size: _reach_of(fit, examiner, target) for size, fit in fits.items()}
        }
        for choice in RECOMMENDED:
            sides[choice.trainer] = {
                size: _reach_of_ours(choice, size, net, cluster, examiner, target) for size in SIZES
            }
        print(f"  target {target:.4f}; seed 1, batch " + ", ".join(map(str, SIZES)))
        found = {title: _decide(title, of_side, seeds) for title, of_side in sides.items()}
    fit = found.pop("fit")
    for title, seconds in found.items():
        ratios = [theirs / ours for theirs, ours in zip(fit, seconds, strict=True)]
        print(
            f"  fit / {title}: median {median(ratios):.2f}, each seed "
            + " ".join(f"{ratio:.2f}" for ratio in ratios),
            flush=True,
        )


def _decide(title: str, of_side: dict[int, Reach], seeds: int) -> list[float]:
    """Return the seconds of the other seeds at the size that the first one finds best."""
    first = {size: reach(1) for size, reach in of_side.items()}
    best = min(first, key=first.__getitem__)
    others = [of_side[best](seed) for seed in range(2, seeds + 1)]
    print(
        f"  {title:<20}"
        + "".join(f"{seconds:8.2f}" for seconds in first.values())
        + f"   best {best}; other seeds "
        + " ".join(f"{seconds:.2f}" for seconds in others),
        flush=True,
    )
    return others


def _curve(fit: Side, examiner: Examiner, seed: int) -> Curve:
    fit.ask("curve", seed, EPOCHS, MARKS)
    return Curve(examiner, fit.answer())


def _reach_of(fit: Side, examiner: Examiner, target: float) -> Reach:
    return lambda seed: _curve(fit, examiner, seed).reach(target)[1]


def _reach_of_ours(
    choice: Choice, size: int, net: str, cluster: Cluster, examiner: Examiner, target: float
) -> Reach:
    chosen = Choice(choice.trainer, size // WORKERS, choice.arguments)

    def reach(seed: int) -> float:
        run = cluster.curve(chosen, net, epochs=EPOCHS, seed=seed, marks=MARKS)
        return Curve(examiner, run.points).reach(target)[1]

    return reach
