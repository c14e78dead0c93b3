"""spark-submit entry point of ``distkeras-grid predict``; ``--help`` tells the flags."""

import sys

from distkeras_grid.cli.predict import main

if __name__ == "__main__":
    sys.exit(main())
