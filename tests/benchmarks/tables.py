"""Markdown tables, as BENCHMARKS.md has them, and the name of the machine above them."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Sequence
from pathlib import Path


def print_row(cells: Iterable[object]) -> None:
    """Print a row at once, so that a long table grows visibly."""
    print(f"| {' | '.join(map(str, cells))} |", flush=True)


def print_head(names: Sequence[str]) -> None:
    """Print the first two lines of a table."""
    print()
    print_row(names)
    print(f"|{'---|' * len(names)}", flush=True)


def print_table(names: Sequence[str], rows: Iterable[Iterable[object]]) -> None:
    """Print a whole table."""
    print_head(names)
    for row in rows:
        print_row(row)


def processor_name() -> str:
    """Return the name of this machine's processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
