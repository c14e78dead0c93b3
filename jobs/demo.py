"""The whole road on the shipped micrographs: tiles, training three ways, a report to look at.

``make demo`` runs it. Two Spark workers (ADAG), one Spark worker (SingleTrainer) and Keras' own
``fit`` with all cores train the same net on the same tiles; tiles of source images that none of
them has seen decide.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from demo_progress import LINES, doing

from distkeras_grid.cli.exit_codes import guarded
from distkeras_grid.signals import terminable

SAMPLES = Path(__file__).resolve().parent.parent / "data_prep" / "samples"


def run(folder: Path, epochs: int) -> None:
    """Tile, train and report into a folder that is made anew."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # TensorFlow's start-up messages help nobody
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")  # for `fit` too: workers have it
    LINES.note("loading TensorFlow, Keras and Spark")
    with doing("loading"):
        # Seconds on a fast machine, so they are not loaded before something can tell of it.
        from demo_report import new_folder, write_report
        from demo_training import compare

        from data_prep import TileSpec, TilingSettings, tile_images
        from distkeras_grid import build_session

        new_folder(folder)
    with doing("starting Spark"):
        spark = build_session("distkeras_grid demo", master="local[2,4]")
    spec = TileSpec(tile=128, overlap=0.5, angles=range(0, 360, 45))
    tiles = str(folder / "tiles")
    settings = TilingSettings(str(SAMPLES), tiles, spec, split="0.6:0.2:0.2", seed=1)
    with doing("tiling"):
        manifest = tile_images(settings, spark=spark, say=LINES.note)
    comparison = compare(tiles, epochs)
    with doing("writing the report"):
        page = write_report(folder, SAMPLES, spec, manifest, comparison)
        spark.stop()
    print(f"\nreport: {page}")


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
    sys.stdout.reconfigure(line_buffering=True)
    with terminable():
        code = guarded(lambda: run(flags.output.resolve(), flags.epochs))
    sys.exit(code)
