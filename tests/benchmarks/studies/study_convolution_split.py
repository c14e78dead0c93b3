"""Convolutions over several devices: real runs on this machine, and a time model beyond it.

Varies the kernels of a net of two convolutions. Two processes of one core each train for real, one
of them slowed down in half of the runs; larger clusters and other networks are computed by the time
model, with its error stated.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from distkeras_grid import build_session
from distkeras_grid.cli.common_options import run
from distkeras_grid.cli.exit_codes import ExitCode, exit_codes_help, run_command
from tests.benchmarks.studies.data import load_data
from tests.benchmarks.studies.machine import processor_name
from tests.benchmarks.studies.split_runs import SplitResult, SplitSetup, measure
from tests.benchmarks.studies.split_study import SIZES, print_study

EXAMPLES = """\
examples:
  random numbers in the shape of CIFAR-10:
    python -m tests.benchmarks.studies.study_convolution_split
  CIFAR-10 itself, from the folder of its binary version:
    distkeras-grid ingest --format cifar10 --input cifar-10-batches-bin --output cifar10
    python -m tests.benchmarks.studies.study_convolution_split --data cifar10
  a quick look:
    python -m tests.benchmarks.studies.study_convolution_split --kernels 8:32,16:64

"""


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog=EXAMPLES + exit_codes_help(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--data", metavar="URI", help="data set of `ingest` with splits train and test (random)")
    add(
        "--kernels",
        type=_pairs,
        default=list(SIZES),
        help="of the real runs (50:500,150:800,300:1000,500:1500)",
    )
    add("--batch", type=int, default=4, help="rows of a batch in the real runs (4)")
    add(
        "--slowdowns",
        type=_factors,
        default=[1.0, 2.0],
        help="how many times as long the device of a real run takes (1,2)",
    )
    return parser


def study(flags: argparse.Namespace) -> ExitCode:
    """Measure and print."""
    with ExitStack() as stack:
        setup = SplitSetup((1, 1), flags.batch)
        if flags.data:
            scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dkg-split-")))
            session = build_session("distkeras_grid split study", master="local[2]")
            data = load_data(flags.data, flags.batch, scratch)
            height, width, channels = data.field.shape
            shape = (height, width, channels)
            setup = replace(setup, shape=shape, classes=data.classes, folder=scratch)
            data.train.unpersist()
            session.stop()
        results = [
            _told(measure(replace(setup, kernels=kernels, slowdowns=(slowdown,))))
            for kernels in flags.kernels
            for slowdown in flags.slowdowns
        ]
    machine = f"{processor_name()}, {os.cpu_count()} cores"
    print_study(results, machine, flags.data or "random numbers")
    return ExitCode.OK


def _told(result: SplitResult) -> SplitResult:
    setup = result.setup
    print(
        f"{setup.kernels[0]}:{setup.kernels[1]} kernels, device 1/{setup.slowdowns[0]:g}: one core "
        f"{result.one_core:.3f} s, all cores {result.all_cores:.3f} s, divided "
        f"{result.divided:.3f} s (predicted {result.plan.divided:.3f} s)",
        flush=True,
    )
    return result


def _pairs(text: str) -> list[tuple[int, int]]:
    try:
        pairs = [tuple(map(int, part.split(":"))) for part in text.split(",")]
        return [(first, second) for first, second in pairs]
    except ValueError as error:
        raise argparse.ArgumentTypeError(
            f"pairs such as 50:500 are expected. Received: {text!r}"
        ) from error


def _factors(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError as error:
        raise argparse.ArgumentTypeError(
            f"numbers such as 1,2.5 are expected. Received: {text!r}"
        ) from error


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job; return its exit code."""
    flags = build_parser().parse_args(argv)
    return run_command(lambda: study(flags))


if __name__ == "__main__":
    sys.exit(run("study", main, sys.argv[1:]))
