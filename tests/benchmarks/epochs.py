"""Epoch time: ``fit`` with all cores, window loops without Spark, and two workers under Spark."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import mean, median
from typing import Self

from tests.benchmarks.local import Setup, Side
from tests.benchmarks.nets import NETS
from tests.benchmarks.spark_runs import WORKERS, Choice, Cluster, OnBackend, Trained

WINDOW = 16
# Steps by which the faster kernels for `fit` are found.
TRIAL_STEPS = 100
Train = Callable[..., Trained]
# A run of the MLP takes a second an epoch; more of them make it as long as the others.
EPOCHS_OF_OURS = {"mlp": 3, "cnn": 1}


# Beside TensorFlow; those that this environment has.
OTHERS = {"jax": "JAX", "torch": "PyTorch"}


def other_backends() -> dict[str, str]:
    """Return the titles of the other backends that are installed here, by their names."""
    return {name: title for name, title in OTHERS.items() if importlib.util.find_spec(name)}


class Bound:
    """Window loops of one thread each, at once, each with its part of the rows; no exchange.

    What no number of workers on as many cores can beat without a faster loop.
    """

    def __init__(self, net: str, folder: Path, batch: int, split: str = "train") -> None:
        setup = Setup(net, folder, batch, window=WINDOW, threads=1, split=split)
        self._sides = [Side(replace(setup, part=(number, WORKERS))) for number in range(WORKERS)]

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            for side in self._sides:
                stack.enter_context(side)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    @property
    def start_seconds(self) -> float:
        """Start-up of the slower one."""
        return max(side.start_seconds for side in self._sides)

    def epoch(self) -> float:
        """Return the seconds until the last one has finished."""
        for side in self._sides:
            side.ask("epoch")
        return max(side.answer() for side in self._sides)


@dataclass
class Row:
    """One side of a table: what it is, how to run it, what was measured."""

    title: str
    measure: Callable[[], float]
    start_seconds: float = 0.0
    ours: bool = False
    seconds: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        return median(self.seconds)


def start_fit(stack: ExitStack, net: str, folder: Path, batch: int, split: str = "train") -> Side:
    """Start ``fit`` with oneDNN's kernels and without; keep the faster one."""
    sides = []
    for onednn in (False, True):
        side = Side(Setup(net, folder, batch, onednn=onednn, split=split))
        sides.append(side.__enter__())
    seconds = [0.0, 0.0]
    for _ in range(2):
        for number, side in enumerate(sides):
            side.ask("steps", TRIAL_STEPS)
            seconds[number] += side.answer()
    best = min(range(2), key=seconds.__getitem__)
    sides[1 - best].__exit__()
    stack.push(sides[best])
    print(
        f"  fit, {2 * TRIAL_STEPS} steps: {seconds[0]:.2f} s with TF_ENABLE_ONEDNN_OPTS=0, "
        f"{seconds[1]:.2f} s with 1; the faster one is the baseline"
    )
    return sides[best]


def measure_epochs(net: str, batch: int, folder: Path, cluster: Cluster, repetitions: int) -> None:
    """Print the table of one net and one batch size."""
    print(f"\n{NETS[net].title}, batch {batch}: seconds per epoch of 60,000 rows")
    with ExitStack() as stack:
        fit = start_fit(stack, net, folder, batch)
        rows, bound, runs = _rows(stack, net, batch, fit, cluster)
        for _ in range(repetitions):
            for row in rows:
                row.seconds.append(row.measure())
                print(f"  {row.seconds[-1]:.2f}", end="", flush=True)
            print(" s")
    _print_rows(rows, bound)
    _print_runs(runs)


def _rows(
    stack: ExitStack, net: str, batch: int, fit: Side, cluster: Cluster
) -> tuple[list[Row], Row, dict[str, list[Trained]]]:
    folder, onednn = fit.setup.folder, fit.setup.onednn
    kernels = f"oneDNN {'on' if onednn else 'off'}"
    rows = [Row(f"fit, all cores, {kernels}", fit.epoch, fit.start_seconds)]

    def add(title: str, setup: Setup) -> None:
        side = stack.enter_context(Side(setup))
        rows.append(Row(title, side.epoch, side.start_seconds))

    add(
        f"fit, steps_per_execution=10, all cores, {kernels}",
        Setup(net, folder, batch, onednn=onednn, steps_per_execution=10),
    )
    others = other_backends()
    for backend, title in others.items():
        add(f"fit on {title}, all cores", Setup(net, folder, batch, backend=backend))
    if absent := OTHERS.keys() - others:
        print(f"  not installed here, no rows: {', '.join(sorted(absent))} (make bench has all)")
    add(
        f"window loop in one process, all cores, window {WINDOW}",
        Setup(net, folder, batch, window=WINDOW),
    )
    bound = stack.enter_context(Bound(net, folder, batch))
    title = f"bound: {WORKERS} window loops at once, 1 thread each, window {WINDOW}"
    rows.append(Row(title, bound.epoch, bound.start_seconds))
    runs: dict[str, list[Trained]] = {}
    on = {name: stack.enter_context(OnBackend(folder, name)) for name in others}
    for trainer in ("AveragingTrainer", "DOWNPOUR"):
        choice = Choice(trainer, batch, {"communication_window": WINDOW})
        title = f"{trainer}, {WORKERS} workers, 1 thread each, window {WINDOW}"
        runs[title] = []
        measure = partial(_train, cluster.train, choice, net, runs[title])
        rows.append(Row(title, measure, ours=True))
        for backend, name in others.items():
            there = f"{title}, on {name}"
            runs[there] = []
            measure = partial(_train, on[backend].train, choice, net, runs[there])
            rows.append(Row(there, measure))
    return rows, next(row for row in rows if row.title.startswith("bound")), runs


def _train(train: Train, choice: Choice, net: str, runs: list[Trained]) -> float:
    runs.append(train(choice, net, epochs=EPOCHS_OF_OURS[net], seed=len(runs)))
    return runs[-1].epoch_seconds


def _print_rows(rows: list[Row], bound: Row) -> None:
    fit = rows[0].median
    fastest = min(row.median for row in rows if row.title.startswith("fit"))
    loop = next(row for row in rows if row.title.startswith("window loop")).median
    print(
        f"  {'':<62}{'median':>8}{'lowest':>8}{'highest':>8}"
        f"{'fit / it':>10}{'best fit':>10}{'loop / it':>10}{'of bound':>10}"
    )
    for row in rows:
        share = f"{bound.median / row.median:10.0%}" if row.ours else ""
        print(
            f"  {row.title:<62}{row.median:8.2f}{min(row.seconds):8.2f}{max(row.seconds):8.2f}"
            f"{fit / row.median:10.2f}{fastest / row.median:10.2f}{loop / row.median:10.2f}{share}",
            flush=True,
        )
    best, ours = (
        min((row for row in rows if part in row.title), key=lambda row: row.median)
        for part in ("fit", "workers")
    )
    print(
        f"  fastest fit / fastest of the two workers: {best.median / ours.median:.2f} "
        f"({best.title}; {ours.title})"
    )
    started = ", ".join(f"{row.start_seconds:.1f}" for row in rows if row.start_seconds)
    print(f"  start-up, left out above: {started} s for the sides without Spark, in their order")


def _print_runs(runs: dict[str, list[Trained]]) -> None:
    for title, trained in runs.items():
        first, later = trained[0], trained[1:] or trained
        print(
            f"  {title}: first batch {first.start_seconds:.1f} s after the call of train() in "
            f"the first run, {mean(run.start_seconds for run in later):.1f} s later"
        )
