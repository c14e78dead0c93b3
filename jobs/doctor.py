"""spark-submit entry point of ``distkeras-grid doctor``; ``--help`` tells the flags."""

import sys

from distkeras_grid.cli.doctor import main
from distkeras_grid.cli.running import run

if __name__ == "__main__":
    sys.exit(run("doctor", main, sys.argv[1:]))
