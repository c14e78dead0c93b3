"""Markdown tables, as BENCHMARKS.md has them, and the name of the machine above them."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Sequence
from pathlib import Path


def print_table(names: Sequence[str], rows: Iterable[Iterable[object]]) -> None:
    """Print a table."""
    print()
    for row in (names, ["---"] * len(names), *rows):
        print(f"| {' | '.join(map(str, row))} |", flush=True)


def processor_name() -> str:
    """Return the name of this machine's processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
