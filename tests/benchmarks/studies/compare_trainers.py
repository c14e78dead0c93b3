"""Trainers and plain Keras on one data set: time and accuracy against the batch size.

Each cell of the grid (model x batch x trainer x workers x seed) is measured alone and appended to
the output, one line of JSON each; a study that was broken off goes on where it was. At the end of
each call a table of all is printed.

All sides train the same rows for the same epochs, from the same initial weights for each seed, with
the same optimizer. local is Keras' fit in a process of its own, with float32 arrays in memory and
all cores; each worker has one core and reads Parquet through Spark. Time runs from the first batch
to the last update. Choose by the accuracies on the validation split.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

# For what this process evaluates; workers and `fit` have it, too.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from data_prep.ingest import IngestSettings, ingest_images
from distkeras_grid import build_session
from distkeras_grid.cli import preflight
from distkeras_grid.cli.common_options import run
from distkeras_grid.cli.exit_codes import ExitCode, exit_codes_help, run_command
from distkeras_grid.engine.registry import current_backend
from distkeras_grid.spark.interpreters import package_versions, training_packages
from tests.benchmarks.studies.cells import LOCAL, grid
from tests.benchmarks.studies.data import Data, load_data
from tests.benchmarks.studies.machine import processor_name
from tests.benchmarks.studies.nets import NETS
from tests.benchmarks.studies.results import HEAD, Results, table
from tests.benchmarks.studies.study import Regime, check_names, run_study
from tests.benchmarks.tables import print_table

TRAINERS = ("ADAG", "DOWNPOUR", "AEASGD", "AveragingTrainer", "SingleTrainer", LOCAL)
EXAMPLES = """\
examples:
  a quick look:
    python -m tests.benchmarks.studies.compare_trainers --fashion-mnist FOLDER --rows 2000 \\
        --seeds 1 --epochs 1 --batches 32,128 --output look.jsonl
  photos, gray, as 28x28x1 principal components:
    distkeras-grid ingest --format images --input photos --output data --size 128 \\
        --split folder --gray --pca
    python -m tests.benchmarks.studies.compare_trainers --data data \\
        --title 'photos (gray, PCA)' --output study.jsonl

"""


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog=EXAMPLES + exit_codes_help(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    data = parser.add_mutually_exclusive_group(required=True)
    data.add_argument(
        "--data",
        metavar="URI",
        help="data set of `tile` or `ingest` with splits train, validation and test. If ingested "
        "images have no validation, a tenth of train takes its place, always the same one",
    )
    data.add_argument(
        "--fashion-mnist",
        metavar="FOLDER",
        help="folder of the four IDX files, brought in for this call alone; local masters only; a "
        "tenth of train is for validation",
    )
    add = parser.add_argument
    add("--output", required=True, type=Path, metavar="FILE", help="local; made, or gone on with")
    add("--title", metavar="TEXT", help="what the data are called (from the path)")
    add("--rows", type=int, metavar="N", help="train on N rows only, always the same (all)")
    add("--epochs", type=int, default=3, help="passes over the rows (3)")
    add(
        "--optimizer",
        default="adam",
        help="of all sides, by Keras' name; EAMSGD and GEM need sgd (adam)",
    )
    add("--learning-rate", type=float, metavar="RATE", help="(the optimizer's own)")
    add("--trainers", type=_names, default=list(TRAINERS), help=f"({','.join(TRAINERS)})")
    add("--models", type=_names, default=list(NETS), help=f"({','.join(NETS)})")
    add(
        "--batches",
        type=_numbers,
        default=[32, 128, 512],
        help="of fit; each worker has it divided by the workers (32,128,512)",
    )
    add("--workers", type=_numbers, default=[2], help="numbers of workers (2)")
    add("--seeds", type=int, default=3, help="how many: 1, 2, ... (3)")
    add("--master", help="Spark master (local[N,4] with N the most workers)")
    return parser


def compare(flags: argparse.Namespace) -> ExitCode:
    """Measure what is missing, and print all that is there."""
    alone = check_names(flags.trainers, flags.models)
    regime = Regime(flags.epochs, flags.optimizer, flags.learning_rate)
    regime.build_optimizer()
    cells = grid(flags.trainers, flags.models, flags.batches, flags.workers, flags.seeds, alone)
    master = flags.master or f"local[{max(flags.workers)},4]"
    preflight.check_slots(master, max(cell.workers for cell in cells))
    build_session("distkeras_grid comparison", master=master)
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dkg-compare-")))
        data = load_data(_data_set(flags, scratch), flags.rows, scratch)
        stack.callback(data.train.unpersist)
        results = Results(flags.output, conditions(flags, data))
        run_study(cells, data, results, regime, _say)
    print_table(HEAD, table(results.outcomes))
    failed = any(outcome.error for outcome in results.outcomes)
    return ExitCode.TRAINING if failed else ExitCode.OK


def conditions(flags: argparse.Namespace, data: Data) -> dict[str, object]:
    """Return what every cell of a folder has in common."""
    path = flags.fashion_mnist or flags.data
    packages = ("distkeras_grid", "pyspark", *training_packages(current_backend()))
    return {
        "title": flags.title or ("Fashion-MNIST" if flags.fashion_mnist else Path(path).name),
        "rows": data.rows,
        "fingerprint": data.fingerprint,
        "validation_rows": len(data.validation),
        "test_rows": len(data.test),
        "shape": "x".join(map(str, data.field.shape)),
        "classes": data.classes,
        "epochs": flags.epochs,
        "optimizer": flags.optimizer,
        "learning_rate": flags.learning_rate or "its own",
        "processor": f"{processor_name()}, {os.cpu_count()} cores",
        "versions": ", ".join(f"{k} {v}" for k, v in package_versions(packages).items()),
    }


def _data_set(flags: argparse.Namespace, scratch: Path) -> str:
    if flags.data:
        return str(flags.data)
    output = str(scratch / "data")
    ingest_images(IngestSettings("idx", flags.fashion_mnist, output), say=_say)
    return output


def _names(text: str) -> list[str]:
    return list(dict.fromkeys(name.strip() for name in text.split(",")))


def _numbers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError as error:
        raise argparse.ArgumentTypeError(
            f"whole numbers such as 32,128 are expected. Received: {text!r}"
        ) from error


def _say(line: str) -> None:
    print(line, flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job; return its exit code."""
    flags = build_parser().parse_args(argv)
    return run_command(lambda: compare(flags))


if __name__ == "__main__":
    sys.exit(run("compare", main, sys.argv[1:]))
