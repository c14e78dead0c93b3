"""spark-submit entry point of ``distkeras-grid retrain``; ``--help`` tells the flags."""

import sys

from distkeras_grid.cli.retrain import main
from distkeras_grid.cli.running import run

if __name__ == "__main__":
    sys.exit(run("retrain", main, sys.argv[1:]))
