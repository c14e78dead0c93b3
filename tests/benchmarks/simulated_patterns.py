"""Published patterns of distributed training, in simulated time and in reduced size.

``python -m tests.benchmarks.simulated_patterns [elastic] [energy] [quorum]``; FASHION_MNIST names
the folder of the IDX files, which the first two train on in the place of MNIST. ``--scale 0.1``
trains a tenth of the steps, to see that it runs.

* elastic: Hermans' thesis (2017), table of accumulated gradient normalization against AEASGD.
* energy: Hermans and Louppe (2018), gradient energy matching against Downpour.
* quorum: rounds that wait for 4 of 5 workers, with exponential times.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from distkeras_grid.errors import NonFiniteLossError
from distkeras_grid.feeding.source import ArraySource
from distkeras_grid.rules import AveragingRule
from distkeras_grid.simulation.cluster import Cluster
from distkeras_grid.simulation.learners import QuadraticLearner
from distkeras_grid.simulation.run import Simulation
from tests.benchmarks import fashion
from tests.specs import simulated_spec

#: Workers, window, and the published accuracy [%] on MNIST: accumulated gradients, AEASGD.
CELLS = (
    (5, 20, None),
    (10, 10, (98.43, 98.64)),
    (15, 20, None),
    (20, 20, (98.47, 98.39)),
    (30, 30, (98.39, 97.77)),
    (40, 10, (95.55, 97.99)),
    (40, 40, (98.18, 97.45)),
)
#: As in the thesis: 40 epochs of 60 000 rows in batches of 128.
STEPS = 18750
BATCH = 32
SEEDS = 2

GEM_WORKERS = (5, 10, 20, 30)
GEM_RATES = (0.05, 0.1)
GEM_STEPS = 120
GEM_BATCH = 64

TEST_ROWS = 10000
CORES_SAID = "one process; TensorFlow's own choice of threads"


def build(hidden: tuple[int, ...], optimizer: Any, seed: int) -> Any:
    """Return a compiled net of dense layers for images of 784 bytes."""
    import keras

    keras.utils.set_random_seed(seed)
    layers = [keras.layers.Dense(units, activation="relu") for units in hidden]
    model = keras.Sequential(
        [
            keras.Input((784,)),
            keras.layers.Rescaling(1 / 255),
            *layers,
            keras.layers.Dense(10, activation="softmax"),
        ]
    )
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def measure(trainer: Any, workers: int, rows: Any, test: Any, seed: int) -> tuple[float, float]:
    """Return accuracy [%] and loss of the center on the test rows; NaN where it diverged."""
    cluster = Cluster(workers, batch_seconds=0.01, times="exponential", seed=seed)
    try:
        found = trainer.simulate(rows, cluster, seed=seed)
    except NonFiniteLossError:
        return math.nan, math.nan
    loss, accuracy = found.model.evaluate(*test, batch_size=1000, verbose=0)
    return 100 * accuracy, loss


def elastic(train: fashion.Rows, test: Any, scale: float) -> Iterator[str]:
    """Compare ADAG with AEASGD; the steps of all workers together are the same in each cell."""
    import keras

    from distkeras_grid import ADAG, AEASGD

    epochs = 10
    count = min(len(train.labels), round(scale * STEPS * BATCH / epochs))
    rows = (train.shaped((784,))[:count], train.labels[:count])
    yield (
        f"784-64-10, Adam 0.001, batch {BATCH}, {count} rows x {epochs} epochs of all workers "
        f"together, alpha 0.05, {SEEDS} seeds; published: 784-1000-2000-1000-10, batch 128, "
        "60 000 rows x 40 epochs, MNIST"
    )
    yield "workers window |  ADAG  AEASGD  ahead   |  published ADAG  AEASGD  ahead"
    for workers, window, published in CELLS:
        found = []
        for kind, extras in ((ADAG, {}), (AEASGD, {"alpha": 0.05})):
            values = [
                measure(
                    kind(
                        build((64,), keras.optimizers.Adam(0.001), seed),
                        batch_size=BATCH,
                        num_epoch=epochs,
                        communication_window=window,
                        progress=False,
                        **extras,
                    ),
                    workers,
                    rows,
                    test,
                    seed,
                )[0]
                for seed in range(SEEDS)
            ]
            found.append(float(np.mean(values)))
        ours = f"{found[0]:5.2f}  {found[1]:6.2f}  {ahead(*found):8s}"
        told = ""
        if published is not None:
            told = f"{published[0]:14.2f}  {published[1]:6.2f}  {ahead(*published)}"
        yield f"{workers:7d} {window:6d} | {ours}| {told}"


def ahead(adag: float, elastic_averaging: float) -> str:
    """Name what is ahead."""
    return "ADAG" if adag > elastic_averaging else "AEASGD"


def energy(train: fashion.Rows, test: Any, scale: float) -> Iterator[str]:
    """Compare GEM with Downpour, each worker with so many steps."""
    import keras

    from distkeras_grid import DOWNPOUR, GEM, DynSGD

    steps = max(2, round(scale * GEM_STEPS))
    yield (
        f"784-128-10, plain SGD, window 1, batch {GEM_BATCH}, {steps} steps of each worker; "
        "published: 2 convolutions and 3 dense layers, rate 0.05, an epoch (937 steps) of each "
        "worker, MNIST"
    )
    yield "published: GEM stable from 5 to 30 workers (also at 0.1), where Downpour degrades"
    yield "rate workers |  GEM % (loss)     DOWNPOUR % (loss)  DynSGD % (loss)"
    for rate in GEM_RATES:
        for workers in GEM_WORKERS:
            drawn = np.random.default_rng(workers).integers(
                0, len(train.labels), workers * steps * GEM_BATCH
            )
            rows = (train.shaped((784,))[drawn], train.labels[drawn])
            cells = []
            for kind in (GEM, DOWNPOUR, DynSGD):
                trainer = kind(
                    build((128,), keras.optimizers.SGD(rate), 0),
                    batch_size=GEM_BATCH,
                    communication_window=1,
                    progress=False,
                )
                accuracy, loss = measure(trainer, workers, rows, test, 0)
                cells.append(f"{accuracy:5.2f} ({loss:.3f})    ")
            yield f"{rate:4g} {workers:7d} |  {'  '.join(cells)}"


def rounds(quorum: float, seed: int, count: int) -> Simulation:
    """Return `count` rounds of five workers with exponential times of mean 1, done."""
    learners = [QuadraticLearner(np.zeros(1), 1.0, 0.5) for _ in range(5)]
    # The late have windows left when the others are done.
    seats = [ArraySource([np.zeros((count, 1))], [np.zeros(count)]) for _ in range(5)]
    spec = simulated_spec(AveragingRule(), learners, seats, quorum=quorum)
    simulation = Simulation(
        Cluster(5, batch_seconds=1.0, times="exponential", seed=seed), spec, learners, seats
    )
    while simulation.version < count and simulation.advance():
        pass
    return simulation


def quorum(scale: float) -> Iterator[str]:
    """Measure how long a round waits."""
    runs, length = round(4000 * scale), round(4000 * scale)
    harmonic = sum(1 / k for k in range(1, 6))
    expected = {1.0: harmonic, 0.8: harmonic - 1}
    first, steady = {}, {}
    for share in (1.0, 0.8):
        waits = [rounds(share, seed, 1).now for seed in range(runs)]
        first[share] = np.mean(waits), np.std(waits) / np.sqrt(runs)
        long = rounds(share, 0, length)
        steady[share] = long.now / long.version
    yield "rounds that all begin together (mean of node times 1):"
    for share, name in ((1.0, "5 of 5"), (0.8, "4 of 5")):
        mean, error = first[share]
        yield f"  {name}: {mean:.3f} +- {error:.3f}, order statistics say {expected[share]:.3f}"
    less = 1 - first[0.8][0] / first[1.0][0]
    yield f"  4 of 5 wait {100 * less:.1f} % less; published (and exact) 43.8 %"
    less = 1 - steady[0.8] / steady[1.0]
    yield (
        f"{length} rounds one after the other, the late one training its dropped window to the "
        f"end: {steady[1.0]:.3f} and {steady[0.8]:.3f}, {100 * less:.1f} % less"
    )


def main(words: Sequence[str] | None = None) -> int:
    """Print the patterns; return 1 where the data are missing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=["quorum", "energy", "elastic"])
    parser.add_argument("--scale", type=float, default=1.0)
    options = parser.parse_args(words)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    folder, missing = fashion.find_folder()
    if folder is None and set(options.names) != {"quorum"}:
        print(missing)
        return 1
    train = test = None
    if folder is not None:
        train, held_out = (fashion.read(folder, split) for split in ("train", "test"))
        test = (held_out.shaped((784,))[:TEST_ROWS], held_out.labels[:TEST_ROWS])
    print(f"simulated time; {CORES_SAID}")
    for name in options.names:
        began = time.monotonic()
        lines = {
            "quorum": lambda: quorum(options.scale),
            "energy": lambda: energy(train, test, options.scale),
            "elastic": lambda: elastic(train, test, options.scale),
        }[name]()
        print(f"\n-- {name} --")
        for line in lines:
            print(line, flush=True)
        print(f"({time.monotonic() - began:.0f} s)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
