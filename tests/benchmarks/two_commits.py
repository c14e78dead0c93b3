"""Seconds per epoch of two commits, in turns.

    git worktree add --detach FOLDER COMMIT
    FASHION_MNIST=FOLDER python -m tests.benchmarks.two_commits --before FOLDER --after FOLDER

The four rows of the README: the MLP by `AveragingTrainer` and the CNN by `DOWNPOUR`, batch 16 and
64 on each of two workers, window 16. Each measurement is a process of its own that imports the
package of one folder, and takes nothing but the public names that both commits have. Seconds are
from the first batch to the last fold.
"""

from __future__ import annotations

import argparse
import json
import os
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median

TRAINERS = {"mlp": "AveragingTrainer", "cnn": "DOWNPOUR"}
EPOCHS = {"mlp": 3, "cnn": 1}
WINDOW, WORKERS = 16, 2
LIMIT = 900.0  # s, of one measurement


def train(folder: str, data: str, net: str, batch: int, epochs: int) -> None:
    """Train once by the package of a folder, and print the seconds per epoch as the last line."""
    import distkeras_grid

    found = Path(distkeras_grid.__file__).resolve()
    if not found.is_relative_to(Path(folder).resolve()):
        raise SystemExit(f"The package is to come from {folder}. Received: {found}.")
    # By its path: tests.benchmarks of that folder is another commit's.
    chosen = runpy.run_path(str(Path(__file__).with_name("nets.py")))["NETS"][net]
    with distkeras_grid.build_session("two commits", master=f"local[{WORKERS},4]") as session:
        trainer = getattr(distkeras_grid, TRAINERS[net])(
            chosen.build(1),
            num_workers=WORKERS,
            batch_size=batch,
            num_epoch=epochs,
            communication_window=WINDOW,
            features_col=distkeras_grid.Field("image", chosen.shape, scale=1 / 255),
            progress=False,
        )
        trainer.train(session.read.parquet(data), seed=1)
    print(json.dumps(trainer.history.training_seconds() / epochs), flush=True)


def measure(folder: Path, data: Path, net: str, batch: int, epochs: int) -> float:
    """Start a process that trains once; return its seconds per epoch."""
    # -P: this file's folder is not to be searched for modules.
    command = [sys.executable, "-P", str(Path(__file__).resolve()), "--train", str(folder)]
    environment = {
        **os.environ,
        "PYTHONPATH": str(folder),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "CUDA_VISIBLE_DEVICES": "-1",
    }
    ended = subprocess.run(
        [*command, str(data), net, str(batch), str(epochs)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    if ended.returncode:
        raise SystemExit(f"{folder} failed:\n{ended.stderr[-2000:]}")
    return float(json.loads(ended.stdout.splitlines()[-1]))


def _commit_of(folder: Path) -> str:
    asked = ["git", "-C", str(folder), "rev-parse", "--short", "HEAD"]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    return done.stdout.strip() or folder.name


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--before", type=Path, help="folder of the earlier commit")
    parser.add_argument("--after", type=Path, help="folder of the later commit")
    parser.add_argument("--nets", nargs="+", choices=("mlp", "cnn"), default=("mlp", "cnn"))
    parser.add_argument("--batches", nargs="+", type=int, default=(16, 64), help="of a worker")
    parser.add_argument("--rows", type=int, default=60_000, help="training rows (60000)")
    parser.add_argument("--epochs", type=int, help="of a run (3 of the MLP, 1 of the CNN)")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--train", nargs=5, help=argparse.SUPPRESS)
    return parser


def main(words: Sequence[str] = ()) -> None:
    """Print the table."""
    options = _parser().parse_args(words)
    if options.train:
        folder, rows, net, batch, epochs = options.train
        train(folder, rows, net, int(batch), int(epochs))
        return
    # Not in the processes that train: they have these modules of another commit, or none.
    from tests.benchmarks import fashion, tables
    from tests.benchmarks.nets import NETS

    images, advice = fashion.find_folder()
    if images is None or options.before is None or options.after is None:
        print(f"Left out: {advice or 'name the folders of two commits by --before and --after'}.")
        return
    folders = {"before": options.before.resolve(), "after": options.after.resolve()}
    seconds: dict[tuple[str, int], dict[str, list[float]]] = {
        (net, batch): {side: [] for side in folders}
        for net in options.nets
        for batch in options.batches
    }
    with tempfile.TemporaryDirectory(prefix="dkg-bench-") as scratch:
        data = Path(scratch) / "rows"
        fashion.write_parquet(fashion.read(images, "train").first(options.rows), data)
        print(f"load before the start {os.getloadavg()[0]:.2f}, {os.cpu_count()} cores")
        for repetition in range(options.repetitions):
            for (net, batch), sides in seconds.items():
                # Each side is first in every other turn.
                for side in sorted(folders, reverse=repetition % 2 == 0):
                    epochs = options.epochs or EPOCHS[net]
                    sides[side].append(measure(folders[side], data, net, batch, epochs))
    print(
        f"before: {_commit_of(folders['before'])}, after: {_commit_of(folders['after'])}; medians "
        f"of {options.repetitions} in turns, {options.rows:,} rows, {WORKERS} workers, window "
        f"{WINDOW}"
    )
    tables.print_table(
        ("net", "batch on each", "side", "s per epoch", "range", "before / it"),
        (
            (
                *(f"{NETS[net].title}, `{TRAINERS[net]}`", batch, side),
                *(f"{median(each):.2f}", f"{min(each):.2f} to {max(each):.2f}"),
                f"{median(sides['before']) / median(each):.2f}",
            )
            for (net, batch), sides in seconds.items()
            for side, each in sides.items()
        ),
    )


if __name__ == "__main__":
    main(sys.argv[1:])
