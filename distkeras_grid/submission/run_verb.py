"""What Spark starts for a verb: ``run_verb.py VERB MODULE:FUNCTION ARGUMENT...``.

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
    verb, place, *arguments = sys.argv[1:]
    module, _, function = place.partition(":")
    command = getattr(importlib.import_module(module), function)
    sys.exit(importlib.import_module("distkeras_grid.cli.running").run(verb, command, arguments))
