"""spark-submit entry point of ``distkeras-grid ingest``; ``--help`` tells the flags."""

import sys

from data_prep.ingest.command import main
from distkeras_grid.cli.running import run

if __name__ == "__main__":
    sys.exit(run("ingest", main, sys.argv[1:]))
