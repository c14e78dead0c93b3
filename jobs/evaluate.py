"""spark-submit entry point of ``distkeras-grid evaluate``; ``--help`` tells the flags."""

import sys

from distkeras_grid.cli.evaluate import main
from distkeras_grid.cli.running import run

if __name__ == "__main__":
    sys.exit(run("evaluate", main, sys.argv[1:]))
