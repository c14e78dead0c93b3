"""A million changed inputs for everything that is read from outside; see `tests.fuzzing`.

    python -m tests.benchmarks.fuzz [--inputs N] [--seed N] [--only PART_OF_A_NAME]

Prints how many inputs were taken and refused. Ends with the first that crashes its reader, takes
longer than 5 s, or needs too much memory.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from itertools import islice
from time import monotonic

from tests.fuzz_targets import all_targets
from tests.fuzzing import check, inputs

#: Each so many inputs, memory is measured, which takes twice the time.
MEASURED = 10


def main(words: Sequence[str] | None = None) -> None:
    """Print a line for each target."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=1_000_000, help="of all targets (1000000)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="targets whose names contain this")
    flags = parser.parse_args(words)
    targets = [target for target in all_targets() if flags.only in target.name]
    share = -(-flags.inputs // len(targets))
    print(f"{'read':>32} {'inputs':>9} {'taken':>9} {'refused':>9} {'seconds':>8}")
    for target in targets:
        began = monotonic()
        taken = sum(
            check(target, data, memory=number % MEASURED == 0)
            for number, data in enumerate(islice(inputs(target, flags.seed), share))
        )
        print(
            f"{target.name:>32} {share:>9,} {taken:>9,} {share - taken:>9,} "
            f"{monotonic() - began:>8.1f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
