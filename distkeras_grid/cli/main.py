"""``distkeras-grid VERB ...``: finds the verb and hands it the rest of the command line."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Sequence

import distkeras_grid
from distkeras_grid.cli.common_options import run
from distkeras_grid.cli.console import print_error, print_result
from distkeras_grid.cli.exit_codes import ExitCode, exit_codes_help
from distkeras_grid.cli.verbs import VERBS


def usage() -> str:
    """Return the help text."""
    width = max(map(len, VERBS))
    lines = [f"  {name:<{width}}  {verb.description}" for name, verb in VERBS.items()]
    return (
        "usage: distkeras-grid VERB [options]\n\nverbs:\n"
        + "\n".join(lines)
        + "\n\ndistkeras-grid VERB --help lists the options of a verb.\n\n"
        + exit_codes_help()
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb; return its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help"):
        print_result(usage().rstrip("\n"))
        return ExitCode.OK if arguments else ExitCode.USAGE
    if arguments[0] == "--version":
        print_result(f"distkeras_grid {distkeras_grid.__version__}")
        return ExitCode.OK
    name, *rest = arguments
    if name not in VERBS:
        near = difflib.get_close_matches(name, VERBS, n=1)
        meant = f" (did you mean {near[0]!r}?)" if near else ""
        print_error(f"distkeras-grid: no verb {name!r}{meant}. Known: {', '.join(VERBS)}.")
        return ExitCode.USAGE
    module = VERBS[name].load()
    # `submit` takes the flags of a job behind its own.
    split = getattr(module, "split_arguments", None)
    own, of_job = split(rest) if split else (rest, ())
    return run(name, module.main, own, of_job)
