"""All benchmarks, or those named: ``python -m tests.benchmarks [NAME ...]``.

Each runs in a process of its own, so that none inherits another's threads, sessions or memory.
"""

from __future__ import annotations

import argparse
import subprocess
import sys

NAMES = ("servers", "tiling", "large_images", "training", "fuzz")


def main() -> int:
    """Run the benchmarks; return how many failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(NAMES))
    names = parser.parse_args().names or NAMES
    unknown = sorted(set(names) - set(NAMES))
    if unknown:
        parser.error(f"no benchmark {unknown[0]!r}; there are {', '.join(NAMES)}")
    failed = 0
    for name in names:
        print(f"\n== {name} ==", flush=True)
        command = [sys.executable, "-m", f"tests.benchmarks.{name}"]
        failed += subprocess.run(command, check=False).returncode != 0
    return failed


if __name__ == "__main__":
    sys.exit(main())
