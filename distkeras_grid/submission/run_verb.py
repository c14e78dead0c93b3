"""What Spark starts for a verb: ``run_verb.py VERB ARGUMENT...``."""

import importlib
import sys
from pathlib import Path

if __name__ == "__main__":
    # Python puts this file's folder first, but the files beside it are not top-level modules.
    folder = str(Path(__file__).resolve().parent)
    sys.path[:] = [path for path in sys.path if path != folder]
    sys.exit(importlib.import_module("distkeras_grid.cli.main").main(sys.argv[1:]))
