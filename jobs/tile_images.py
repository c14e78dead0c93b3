"""spark-submit entry point of ``distkeras-grid tile``; ``--help`` tells the flags."""

import sys

from data_prep.command import main
from distkeras_grid.cli.running import run

if __name__ == "__main__":
    sys.exit(run("tile", main, sys.argv[1:]))
