"""Epoch time of the asynchronous trainers at their default windows, beside the bound."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median

from tests.benchmarks import fashion
from tests.benchmarks.defaults import choices
from tests.benchmarks.epochs import WINDOW, Bound
from tests.benchmarks.nets import NETS
from tests.benchmarks.spark_runs import WORKERS, Choice, Cluster, Trained
from tests.benchmarks.tables import print_table

ASYNCHRONOUS = ("DOWNPOUR", "ADAG", "DynSGD", "StalenessADAG", "GEM", "AEASGD", "EAMSGD")
# Share of the bound, by net and batch.
GOALS = {("mlp", 32): 0.75, ("mlp", 128): 0.8, ("cnn", 32): 0.9, ("cnn", 128): 0.9}
# An epoch of the CNN on all rows takes 12 to 20 s, and a run of the MLP one or two.
SPLITS = {"mlp": "train", "cnn": "few"}
ALL_ROWS = 60_000
EPOCHS = {"mlp": 3, "cnn": 1}


@dataclass
class Measured:
    """What one trainer took, by repetition."""

    runs: list[Trained] = field(default_factory=list)

    @property
    def seconds(self) -> list[float]:
        """Of an epoch."""
        return [run.epoch_seconds for run in self.runs]


def choice_of(trainer: str, net: str, batch: int) -> Choice:
    """Return a trainer with its defaults, but this batch on each worker.

    Its window is that for all rows, because fewer rows would make it shorter.
    """
    found = next(each for each in choices() if each.trainer == trainer)
    found = replace(found, batch=batch)
    window = found.build(net, 0, 1).choose_window(ALL_ROWS // WORKERS, WORKERS).batches
    return replace(found, arguments={**found.arguments, "communication_window": window})


def measure_default_windows(
    net: str, batch: int, folder: Path, cluster: Cluster, repetitions: int
) -> None:
    """Print the table of one net and one batch."""
    split = SPLITS[net]
    rows = len(fashion.read(folder, split).labels)
    found = {trainer: Measured() for trainer in ASYNCHRONOUS}
    bounds: list[float] = []
    with Bound(net, folder, batch, split) as bound:
        for seed in range(repetitions):
            for number, (trainer, measured) in enumerate(found.items()):
                # The machine drifts while seven trainers take turns, so this side has more turns.
                if number % 3 == 0:
                    bounds.append(bound.epoch())
                choice = choice_of(trainer, net, batch)
                measured.runs.append(
                    cluster.train(choice, net, epochs=EPOCHS[net], seed=seed, split=split)
                )
    print(
        f"\n{NETS[net].title}, batch {batch} on each of {WORKERS} workers, default windows: s "
        f"per epoch of {rows:,} rows, medians of {repetitions} in turns (windows as for "
        f"{ALL_ROWS:,} rows)"
    )
    limit, goal = median(bounds), GOALS.get((net, batch))
    head = f"bound: {WORKERS} window loops at once, 1 thread each, window {WINDOW}"
    lines = [(head, "", f"{limit:.2f}", f"{min(bounds):.2f} to {max(bounds):.2f}", "", "", "")]
    for trainer, measured in found.items():
        seconds = measured.seconds
        share = limit / median(seconds)
        lines.append(
            (
                *(f"`{trainer}`", str(measured.runs[0].window), f"{median(seconds):.2f}"),
                f"{min(seconds):.2f} to {max(seconds):.2f}",
                f"{share:.0%}",
                "" if goal is None else f"{goal:.0%}{' missed' if share < goal else ''}",
                f"{median(run.exchange_share for run in measured.runs):.0%}",
            )
        )
    print_table(
        ("", "window", "s per epoch", "range", "of bound", "goal", "of a worker's time outside"),
        lines,
    )
