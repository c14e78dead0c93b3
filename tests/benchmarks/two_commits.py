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
import gzip
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

# This file also runs in worktrees whose tests.benchmarks is another one: nothing of it is imported.

VARIABLE = "FASHION_MNIST"
IMAGES, LABELS = "train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"
ROWS = (
    ("mlp", 16, "AveragingTrainer"),
    ("mlp", 64, "AveragingTrainer"),
    ("cnn", 16, "DOWNPOUR"),
    ("cnn", 64, "DOWNPOUR"),
)
TITLES = {"mlp": "MLP 784-512-256-10", "cnn": "CNN conv32-pool-conv64-pool-dense128"}
EPOCHS = {"mlp": 3, "cnn": 1}
WINDOW, WORKERS = 16, 2
LIMIT = 900.0  # s, of one measurement


@dataclass
class Row:
    """What one commit took for one row, by repetition."""

    seconds: list[float] = field(default_factory=list)  # Of an epoch
    failure: str = ""  # What a process said before it failed


def write_rows(folder: Path, target: Path, limit: int) -> None:
    """Write training rows of Fashion-MNIST as Parquet, in four files."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    content = gzip.decompress((folder / IMAGES).read_bytes())
    images = np.frombuffer(content, np.uint8, offset=16).reshape(-1, 28 * 28)[:limit]
    content = gzip.decompress((folder / LABELS).read_bytes())
    labels = np.frombuffer(content, np.uint8, offset=8).astype(np.int64)[:limit]
    target.mkdir()
    for part in range(4):
        pixels = pa.array([image.tobytes() for image in images[part::4]], pa.binary())
        table = pa.table({"image": pixels, "label": pa.array(labels[part::4])})
        pq.write_table(table, target / f"part-{part}.parquet")


def train(folder: str, data: str, net: str, batch: int, trainer: str, epochs: int) -> None:
    """Train once by the package of a folder, and print what it took as a line of JSON."""
    import distkeras_grid

    found = Path(distkeras_grid.__file__).resolve()
    if not found.is_relative_to(Path(folder).resolve()):
        raise SystemExit(f"The package is to come from {folder}. Received: {found}.")
    model, shape = _build(net)
    with distkeras_grid.build_session("two commits", master=f"local[{WORKERS},4]") as session:
        made = getattr(distkeras_grid, trainer)(
            model,
            num_workers=WORKERS,
            batch_size=batch,
            num_epoch=epochs,
            communication_window=WINDOW,
            features_col=distkeras_grid.Field("image", shape, scale=1 / 255),
            progress=False,
        )
        made.train(session.read.parquet(data), seed=1)
        told = {"seconds": made.history.training_seconds() / epochs}
    print(json.dumps(told), flush=True)


def _build(net: str) -> tuple[Any, tuple[int, ...]]:
    """Return a net, as the benchmarks of both commits have it, and the shape that it takes."""
    import keras
    from keras import layers

    keras.utils.set_random_seed(1)
    shape: tuple[int, ...]
    if net == "mlp":
        shape = (784,)
        inner = [layers.Dense(512, activation="relu"), layers.Dense(256, activation="relu")]
    else:
        shape = (28, 28, 1)
        inner = [
            layers.Conv2D(32, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(64, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(128, activation="relu"),
        ]
    last = layers.Dense(10, activation="softmax")
    model = keras.Sequential([keras.Input(shape), *inner, last])
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model, shape


def measure(folder: Path, data: Path, of: tuple[str, int, str], epochs: int, row: Row) -> None:
    """Start a process that trains once."""
    words = ["--train", str(folder), str(data), *map(str, of), str(epochs)]
    environment = {
        **os.environ,
        "PYTHONPATH": str(folder),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "CUDA_VISIBLE_DEVICES": "-1",
    }
    # -P: this file's folder is not to be searched for modules.
    command = [sys.executable, "-P", str(Path(__file__).resolve()), *words]
    try:
        ended = subprocess.run(
            command,
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=LIMIT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        row.failure = f"no end after {LIMIT:.0f} s"
        return
    if ended.returncode:
        lines = ended.stderr.strip().splitlines()
        row.failure = lines[-1] if lines else f"exit code {ended.returncode}"
        return
    told = [line for line in ended.stdout.splitlines() if line.startswith("{")]
    row.seconds.append(json.loads(told[-1])["seconds"])


def _commit_of(folder: Path) -> str:
    asked = ["git", "-C", str(folder), "rev-parse", "--short", "HEAD"]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    return done.stdout.strip() or folder.name


def _line(title: str, side: str, row: Row, other: Row | None) -> str:
    if not row.seconds:
        return f"| {title} | {side} | failed: {row.failure} | | |"
    ratio = ""
    if other is not None and other.seconds:
        ratio = f"{median(other.seconds) / median(row.seconds):.2f}"
    spread = f"{min(row.seconds):.2f} to {max(row.seconds):.2f}"
    return f"| {title} | {side} | {median(row.seconds):.2f} | {spread} | {ratio} |"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--before", type=Path, help="folder of the earlier commit")
    parser.add_argument("--after", type=Path, help="folder of the later commit")
    parser.add_argument("--nets", nargs="+", choices=("mlp", "cnn"), default=("mlp", "cnn"))
    parser.add_argument("--batches", nargs="+", type=int, default=(16, 64), help="of a worker")
    parser.add_argument("--rows", type=int, default=60_000, help="training rows (60000)")
    parser.add_argument("--epochs", type=int, help="of a run (3 of the MLP, 1 of the CNN)")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--train", nargs=6, help=argparse.SUPPRESS)
    return parser


def main(words: Sequence[str] = ()) -> int:
    """Print the table; return how many rows failed."""
    options = _parser().parse_args(words)
    if options.train:
        folder, data, net, batch, trainer, epochs = options.train
        train(folder, data, net, int(batch), trainer, int(epochs))
        return 0
    named = os.environ.get(VARIABLE, "")
    if not named or not (Path(named) / IMAGES).is_file():
        print(f"Left out: set {VARIABLE} to the folder with {IMAGES} and {LABELS}.")
        return 0
    if options.before is None or options.after is None:
        print("Left out: name the folders of two commits by --before and --after.")
        return 0
    folders = {"before": options.before.resolve(), "after": options.after.resolve()}
    rows = [row for row in ROWS if row[0] in options.nets and row[1] in options.batches]
    found = {row: {side: Row() for side in folders} for row in rows}
    with tempfile.TemporaryDirectory(prefix="dkg-bench-") as scratch:
        data = Path(scratch) / "rows"
        write_rows(Path(named), data, options.rows)
        print(f"load before the start {os.getloadavg()[0]:.2f}, {os.cpu_count()} cores")
        for repetition in range(options.repetitions):
            for row in rows:
                # Each side is first in every other turn.
                for side in sorted(folders, reverse=repetition % 2 == 0):
                    epochs = options.epochs or EPOCHS[row[0]]
                    measure(folders[side], data, row, epochs, found[row][side])
    print(
        f"before: {_commit_of(folders['before'])}, after: {_commit_of(folders['after'])}; medians "
        f"of {options.repetitions} in turns, {options.rows:,} rows, {WORKERS} workers, window "
        f"{WINDOW}\n"
    )
    print("| | | s per epoch | range | before / after |")
    print("|---|---|---|---|---|")
    for (net, batch, trainer), sides in found.items():
        title = f"{TITLES[net]}, `{trainer}`, batch {batch} on each"
        for side, row in sides.items():
            print(_line(title, side, row, sides["before"] if side == "after" else None))
    return sum(bool(row.failure) for sides in found.values() for row in sides.values())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
