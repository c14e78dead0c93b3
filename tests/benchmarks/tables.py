"""Markdown tables, as BENCHMARKS.md has them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


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
