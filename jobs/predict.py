"""spark-submit entry point of ``distkeras-grid predict``; ``--help`` tells the flags."""

import sys

from distkeras_grid.cli.predict import main
from distkeras_grid.cli.running import run

if __name__ == "__main__":
    sys.exit(run("predict", main, sys.argv[1:]))
