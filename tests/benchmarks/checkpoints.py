"""What checkpoints cost beside training: ``python -m tests.benchmarks.checkpoints``.

    FASHION_MNIST=FOLDER python -m tests.benchmarks.checkpoints [--nets mlp] [--every 10]

Two workers on two cores train the same epochs without ``checkpoint_dir``, with it, and with it and
a short ``checkpoint_every``; the three take turns after one run that is not counted. A run is
shorter than the default interval, so with the default it writes none while it trains, and its row
says what being ready to write costs. What each one costs is told by the short interval, and what
that would be at the default is computed from it. Start-up is not in these times, nor is the
checkpoint that each run writes at its end: that is in the time from the last fold to the return.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from distkeras_grid.checkpoints import MANIFEST, CheckpointManifest
from distkeras_grid.trainers.arguments import CHECKPOINT_SECONDS
from tests.benchmarks import fashion, nets
from tests.benchmarks.spark_runs import WORKERS, Choice, Cluster
from tests.benchmarks.studies.machine import processor_name
from tests.benchmarks.studies.nets import Net as AnyNet
from tests.benchmarks.tables import print_table

#: Rows in a batch of each worker, and epochs of a run, which has to last some short intervals.
BATCHES = {"mlp": 16, "wide": 128}
EPOCHS = {"mlp": 12, "wide": 3}
# Units of the two hidden layers: 4.9 million weights.
WIDE = (2048, 1600)
PLAIN = "without"


def _wide_layers(classes: int) -> list[Any]:
    from keras import layers

    hidden = [layers.Dense(units, activation="relu") for units in WIDE]
    return [*hidden, layers.Dense(classes, activation="softmax")]


def add_wide() -> None:
    """Make the net with 20 MB of weights known to the trainers of the benchmarks."""
    title = f"MLP 784-{WIDE[0]}-{WIDE[1]}-{nets.CLASSES}"
    nets.NETS["wide"] = nets.Net(title, (784,), True, AnyNet(title, True, _wide_layers))


@dataclass
class Way:
    """One way to train, and what it took."""

    title: str  # For the table
    every: float | None = None  # ``checkpoint_every`` [s]; None for the trainer's default
    seconds: list[float] = field(default_factory=list)  # Of an epoch, by repetition
    # From the last fold until ``train`` returned [s]
    returns: list[float] = field(default_factory=list)
    # Checkpoints that a run wrote before the one at its end, and bytes of the last one
    counts: list[int] = field(default_factory=list)
    # Checkpoints that a run wrote before the one at its end, and bytes of the last one
    sizes: list[int] = field(default_factory=list)

    def run(self, cluster: Cluster, net: str, trainer: str, seed: int) -> None:
        """Train once."""
        with tempfile.TemporaryDirectory(prefix="dkg-bench-") as scratch:
            folder = Path(scratch) / "run"
            more: dict[str, Any] = {}
            if self.title != PLAIN:
                more["checkpoint_dir"] = str(folder)
            if self.every is not None:
                more["checkpoint_every"] = self.every
            choice = Choice(trainer, BATCHES[net], more)
            trained = cluster.train(choice, net, epochs=EPOCHS[net], seed=seed)
            self.seconds.append(trained.epoch_seconds)
            self.returns.append(trained.return_seconds)
            last = newest(folder)
            self.counts.append(last.number - 1 if last else 0)
            self.sizes.append(sum(piece.bytes for piece in last.pieces) if last else 0)


def newest(folder: Path) -> CheckpointManifest | None:
    """Return the manifest of a folder's last checkpoint; the first one has the number 1."""
    found = sorted(folder.glob(f"checkpoint-*/{MANIFEST}"))
    return CheckpointManifest.from_bytes(found[-1].read_bytes()) if found else None


def measure(cluster: Cluster, net: str, trainer: str, every: float, repetitions: int) -> list[Way]:
    """Let the ways take turns."""
    ways = [
        Way(PLAIN),
        Way(f"`checkpoint_dir`, every {CHECKPOINT_SECONDS:g} s (default)"),
        Way(f"`checkpoint_dir`, every {every:g} s", every),
    ]
    Way(PLAIN).run(cluster, net, trainer, seed=0)
    for repetition in range(repetitions):
        # Each is first in its turn, so that a machine that becomes slower favors none.
        for number in range(len(ways)):
            ways[(repetition + number) % len(ways)].run(cluster, net, trainer, seed=repetition)
    return ways


def print_ways(net: str, trainer: str, ways: list[Way]) -> None:
    """Print the table of one net, and what one checkpoint costs."""
    plain, short = ways[0], ways[-1]
    epochs = EPOCHS[net]
    print(
        f"\n{nets.NETS[net].title}, Adam, `{trainer}`, {WORKERS} workers with batch {BATCHES[net]} "
        f"each, runs of {epochs} epochs, {len(plain.seconds)} of each in turns"
    )
    rows = []
    for way in ways:
        slower = [100 * (a / b - 1) for a, b in zip(way.seconds, plain.seconds, strict=True)]
        told = f"{median(slower):+.1f} % ({min(slower):+.1f} to {max(slower):+.1f})"
        rows.append(
            (
                way.title,
                f"{median(way.seconds):.2f}",
                f"{min(way.seconds):.2f} to {max(way.seconds):.2f}",
                "" if way is plain else told,
                f"{median(way.counts):g}",
                f"{median(way.sizes) / 1e6:.1f}",
                f"{median(way.returns):.2f}",
            )
        )
    print_table(
        (
            *("", "s per epoch, median", "range", "slower than without, median of turns"),
            *("checkpoints while training", "MB each", "s from last fold to return"),
        ),
        rows,
    )
    costs = [
        epochs * (a - b) / count
        for a, b, count in zip(short.seconds, plain.seconds, short.counts, strict=True)
        if count
    ]
    if costs:
        print(
            f"\nOne checkpoint costs {median(costs):.2f} s ({min(costs):.2f} to {max(costs):.2f}): "
            f"at the default interval that is {median(costs) / CHECKPOINT_SECONDS:.2%}. The goal "
            "is 3 % at most."
        )
    else:
        print("\nNo checkpoint was written: a run is shorter than the interval. Use more --epochs.")


def main(words: Sequence[str] = ()) -> None:
    """Print the tables."""
    add_wide()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nets", nargs="+", choices=tuple(EPOCHS), default=tuple(EPOCHS))
    parser.add_argument("--trainer", default="DOWNPOUR")
    parser.add_argument("--every", type=float, default=10.0, help="the short interval (10 s)")
    parser.add_argument("--epochs", type=int, help="of a run, for all nets")
    parser.add_argument("--repetitions", type=int, default=3)
    options = parser.parse_args(words)
    if options.epochs:
        EPOCHS.update(dict.fromkeys(EPOCHS, options.epochs))
    folder, advice = fashion.find_folder()
    if folder is None:
        print(f"Benchmark of checkpoints left out: {advice}.")
        return
    os.environ.update({"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"})
    load = ", ".join(f"{value:.2f}" for value in os.getloadavg())
    print(f"{processor_name()}, {os.cpu_count()} cores, load before the start {load}")
    with Cluster(folder) as cluster:
        take = partial(measure, cluster, every=options.every, repetitions=options.repetitions)
        for net in options.nets:
            print_ways(net, options.trainer, take(net=net, trainer=options.trainer))


if __name__ == "__main__":
    import sys

    main(sys.argv[1:])
