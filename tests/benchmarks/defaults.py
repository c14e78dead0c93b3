"""Every trainer as it comes, beside ``fit``: the accuracy after five epochs."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

from distkeras_grid.trainers import TRAINERS
from tests.benchmarks.curves import EPOCHS, Examiner
from tests.benchmarks.epochs import start_fit
from tests.benchmarks.nets import NETS
from tests.benchmarks.spark_runs import WORKERS, Choice, Cluster

BATCH, SEEDS = 32, (1, 2, 3)
ROWS = 50_000


def choices() -> list[Choice]:
    """Return each trainer with what it needs and no more."""
    import keras

    # Those that take plain SGD only, with the rates from which their authors start.
    needed: dict[str, dict[str, Any]] = {
        "GEM": {"worker_optimizer": keras.optimizers.SGD(0.05)},
        "EAMSGD": {"worker_optimizer": keras.optimizers.SGD(0.01)},
    }
    own_batch = {"SingleTrainer": BATCH, "EnsembleTrainer": BATCH}
    return [
        Choice(name, own_batch.get(name, BATCH // WORKERS), needed.get(name, {}))
        for name in TRAINERS
    ]


def with_falling_rates() -> list[Choice]:
    """Return those that end more than a point behind, with the rate that the README advises.

    ``SingleTrainer``, which equals ``fit``, tells what such a rate is worth by itself.
    """
    import keras

    def adam() -> Any:
        return keras.optimizers.Adam(_falling(0.001))

    return [
        Choice("SingleTrainer", BATCH, {"worker_optimizer": adam()}),
        Choice("DynSGD", BATCH // WORKERS, {"worker_optimizer": adam()}),
        Choice("GEM", BATCH // WORKERS, {"worker_optimizer": keras.optimizers.SGD(_falling(0.05))}),
    ]


def _falling(rate: float) -> Any:
    """Return half a cosine from `rate` to 0 over the steps of one worker."""
    import keras

    return keras.optimizers.schedules.CosineDecay(rate, EPOCHS * -(-ROWS // BATCH))


def measure_defaults(net: str, folder: Path, cluster: Cluster) -> None:
    """Print the table of one net."""
    print(
        f"\n{NETS[net].title}: test accuracy after {EPOCHS} epochs of {ROWS:,} rows, fit with "
        f"batch {BATCH}, trainers with their defaults and batch {BATCH // WORKERS} on each of "
        f"{WORKERS} workers (single and ensemble: {BATCH}); falling: a learning rate that falls to "
        f"0; seeds {', '.join(map(str, SEEDS))}"
    )
    tested = Examiner(net, folder, "test")
    with ExitStack() as stack:
        fit = start_fit(stack, net, folder, BATCH, "fitting")
        found = []
        for seed in SEEDS:
            fit.ask("curve", seed, EPOCHS, 1)
            found.append(tested.accuracy(fit.answer()[-1][2]))
    theirs = sum(found) / len(found)
    _print("fit", found, theirs)
    for title, chosen in (("", choices()), (" falling", with_falling_rates())):
        for choice in chosen:
            models = [cluster.model(choice, net, epochs=EPOCHS, seed=seed) for seed in SEEDS]
            accuracies = [tested.accuracy_of(model) for model in models]
            _print(choice.trainer + title, accuracies, theirs)


def _print(title: str, found: list[float], theirs: float) -> None:
    mean = sum(found) / len(found)
    each = " ".join(f"{value:.4f}" for value in found)
    print(f"  {title:<22}{mean:8.4f}{100 * (mean - theirs):+7.2f} points   {each}", flush=True)
