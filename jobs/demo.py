"""The whole road on the shipped micrographs: tiles, training, a report to look at.

``make demo`` runs it. Which micrographs are out of focus? Two Spark workers and Keras' own ``fit``
with all cores train the same net on the same tiles, and two workers once more while one of them is
killed. Micrographs that none of them has seen decide.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from demo_progress import LINES, spinner

from distkeras_grid.cli.exit_codes import run_command
from distkeras_grid.signals import terminable

SAMPLES = Path(__file__).resolve().parent.parent / "data_prep" / "samples"
LOG = "spark.log"


@contextmanager
def stderr_to(path: Path) -> Iterator[None]:
    """Send standard error, also that of processes that start meanwhile, to a file."""
    terminal = os.dup(2)
    with path.open("ab") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(terminal, 2)
        os.close(terminal)


def run(folder: Path, epochs: int) -> None:
    """Tile, train and report into a folder that is made anew."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")  # for `fit` too: workers have it
    LINES.note("loading TensorFlow, Keras and Spark")
    with spinner("loading"):
        # Seconds on a fast machine, so they are not loaded before something can tell of it.
        from demo_report import correct, new_folder, write_report

        new_folder(folder)
    # What TensorFlow and Java say while they start, and later of the process that is killed.
    with stderr_to(folder / LOG):
        with spinner("loading"):
            from demo_micrographs import GROUP, write_micrographs
            from demo_training import train_all

            from data_prep import TileSpec, TilingSettings, tile_images
            from distkeras_grid import build_session
        with spinner("starting Spark"):
            spark = build_session("distkeras_grid demo", master="local[2,4]")
    spec = TileSpec(tile=96, overlap=0.5, angles=(0, 90))
    images, tiles = folder / "micrographs", str(folder / "tiles")
    with spinner("tiling"):
        tilted = write_micrographs(SAMPLES, images)
        # Images of one place are known by their names, and need not be looked for.
        settings = TilingSettings(
            *(str(images), tiles, spec),
            split="0.5:0.15:0.35",
            seed=1,
            group=GROUP,
            near_duplicates="off",
        )
        manifest = tile_images(settings, spark=spark, say=LINES.note)
    findings = train_all(tiles, epochs)
    with spinner("writing the report"):
        page = write_report(folder, spec, manifest, findings, tilted)
        spark.stop()
    evaluation = findings.evaluation
    print(f"right: {correct(evaluation, 'source')} of the images, ", end="")
    print(f"{correct(evaluation, 'row')} of their tiles")
    print(f"\nreport: {page}\nlog of Spark and TensorFlow: {folder / LOG}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("demo-report"),
        help="folder of the report; one that the demo wrote is replaced (demo-report)",
    )
    parser.add_argument("--epochs", type=int, default=5, help="passes over the tiles (5)")
    flags = parser.parse_args()
    # Lines appear when they are printed, also where the output is a pipe or a file.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)
    with terminable():
        code = run_command(lambda: run(flags.output.resolve(), flags.epochs))
    sys.exit(code)
