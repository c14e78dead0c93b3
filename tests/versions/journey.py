"""What a user does first: tile, train twice, predict, evaluate, in one process.

``python journey.py FOLDER`` with images in ``FOLDER/images``; ends with the first exit code that is
not 0.
"""

from __future__ import annotations

import sys

from distkeras_grid.cli.main import main

LOCAL = ("--master", "local[2,4]")
TILES = ("--tile", "64", "--overlap", "0", "--angles", "0,90", "--split", "0.6:0.2:0.2")
TRAINING = (
    *("--model", "small_net:build", "--features", "image", "--epochs", "2"),
    *("--batch-size", "8", "--workers", "2", "--seed", "1"),
)


def journey(folder: str) -> int:
    """Run the commands; commits that are folded as they come, and rounds in a barrier stage."""
    tiles = ("--data", f"{folder}/tiles")
    train = ("train", *tiles, "--split", "train", "--validation-split", "validation", *TRAINING)
    commands = [
        ("tile", "--input", f"{folder}/images", "--output", f"{folder}/tiles", *TILES),
        (*train, "--trainer", "ADAG", "--output", f"{folder}/ADAG"),
        (*train, "--trainer", "AveragingTrainer", "--output", f"{folder}/AveragingTrainer"),
        (
            *("predict", *tiles, "--split", "test", "--features", "image"),
            *("--model", f"{folder}/ADAG", "--output", f"{folder}/predictions"),
        ),
        ("evaluate", "--data", f"{folder}/predictions", "--output", f"{folder}/figures.json"),
    ]
    return next((code for command in commands if (code := main([*command, *LOCAL]))), 0)


if __name__ == "__main__":
    sys.exit(journey(sys.argv[1]))
