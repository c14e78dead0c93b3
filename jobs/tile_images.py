"""spark-submit entry point of ``distkeras-grid tile``; ``--help`` tells the flags."""

import sys

from data_prep.command import main

if __name__ == "__main__":
    sys.exit(main())
