"""spark-submit entry point of ``distkeras-grid train``; ``--help`` tells the flags."""

import sys

from distkeras_grid.cli.running import run
from distkeras_grid.cli.train import main

if __name__ == "__main__":
    sys.exit(run("train", main, sys.argv[1:]))
