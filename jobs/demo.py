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

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # TensorFlow's start-up messages help nobody
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")  # for `fit` too: workers have it

from demo_report import new_folder, write_report
from demo_training import Comparison, compare

from data_prep import TileSpec, TilingSettings, tile_images
from distkeras_grid import build_session
from distkeras_grid.cli.exit_codes import guarded

SAMPLES = Path(__file__).resolve().parent.parent / "data_prep" / "samples"
SPEC = TileSpec(tile=128, overlap=0.5, angles=range(0, 360, 45))


def run(folder: Path, epochs: int) -> None:
    """Tile, train and report into a folder that is made anew."""
    new_folder(folder)
    spark = build_session("distkeras_grid demo", master="local[2,4]")
    tiles = str(folder / "tiles")
    settings = TilingSettings(str(SAMPLES), tiles, SPEC, split="0.6:0.2:0.2", seed=1)
    manifest = tile_images(settings, spark=spark, say=print)
    comparison: Comparison = compare(tiles, epochs)
    page = write_report(folder, SAMPLES, SPEC, manifest, comparison)
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
    sys.exit(guarded(lambda: run(flags.output.resolve(), flags.epochs)))
