"""What Spark starts for a verb of ``distkeras-grid``: ``run_verb.py MODULE:FUNCTION ARGUMENT...``.

In a container the project is a zip file without metadata, which names no verbs; so the submission
says where the verb is.
"""

import importlib
import sys
from pathlib import Path

if __name__ == "__main__":
    # Python puts this file's folder first, but what lies beside it are no top-level modules.
    folder = str(Path(__file__).resolve().parent)
    sys.path[:] = [path for path in sys.path if path != folder]
    module, _, function = sys.argv[1].partition(":")
    sys.exit(getattr(importlib.import_module(module), function)(sys.argv[2:]))
