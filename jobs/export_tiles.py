"""spark-submit entry point of ``distkeras-grid export``; ``--help`` tells the flags."""

import sys

from distkeras_grid.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["export", *sys.argv[1:]]))
