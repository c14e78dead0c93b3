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


def measure_defaults(net: str, folder: Path, cluster: Cluster) -> None:
    """Print the table of one net."""
    print(
        f"\n{NETS[net].title}: test accuracy after {EPOCHS} epochs of 50,000 rows, fit with batch "
        f"{BATCH}, trainers with their defaults and batch {BATCH // WORKERS} on each of {WORKERS} "
        f"workers (single and ensemble: {BATCH}); seeds {', '.join(map(str, SEEDS))}"
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
    for choice in choices():
        models = [cluster.model(choice, net, epochs=EPOCHS, seed=seed) for seed in SEEDS]
        _print(choice.trainer, [tested.accuracy_of(model) for model in models], theirs)


def _print(title: str, found: list[float], theirs: float) -> None:
    mean = sum(found) / len(found)
    each = " ".join(f"{value:.4f}" for value in found)
    print(f"  {title:<18}{mean:8.4f}{100 * (mean - theirs):+7.2f} points   {each}", flush=True)
