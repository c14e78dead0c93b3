"""spark-submit entry point of ``distkeras-grid compact``; ``--help`` tells the flags."""

import sys

from distkeras_grid.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["compact", *sys.argv[1:]]))
