"""``distkeras-grid VERB ...``: finds the verb and hands it the rest of the command line."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Sequence
from importlib import metadata

from distkeras_grid.cli.exit_codes import ExitCode, exit_codes_help
from distkeras_grid.cli.running import run

GROUP = "distkeras_grid.commands"

DESCRIPTIONS = {
    "tile": "cut microscopy images into overlapping, rotated tiles (Parquet)",
    "ingest": "bring Fashion-MNIST, CIFAR-10 or folders of images into Parquet",
    "train": "train a Keras model on Spark workers",
    "retrain": "train the last model of a folder of runs on what is new",
    "predict": "add a model's predictions to a data set",
    "evaluate": "compare predictions with labels",
    "submit": "run one of these, or a program of yours, on YARN or a standalone cluster",
    "status": "tell how a submitted application is",
    "cancel": "stop a submitted application",
    "doctor": "look whether this cluster is fit for a training",
    "put": "copy files and folders to HDFS, without Java and Hadoop",
    "get": "copy files and folders from HDFS, without Java and Hadoop",
    "ls": "list a directory on HDFS, without Java and Hadoop",
    "sandbox": "start and stop a real HDFS and YARN on this machine",
}


def usage(verbs: Sequence[str]) -> str:
    """Return the help text."""
    width = max(map(len, verbs), default=0)
    lines = [f"  {verb:<{width}}  {DESCRIPTIONS.get(verb, '')}".rstrip() for verb in verbs]
    return (
        "usage: distkeras-grid VERB [options]\n\nverbs:\n"
        + "\n".join(lines)
        + "\n\ndistkeras-grid VERB --help tells the options of each.\n\n"
        + exit_codes_help()
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb; return its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    commands = {entry.name: entry for entry in metadata.entry_points(group=GROUP)}
    verbs = sorted(
        commands, key=list(DESCRIPTIONS).index if set(commands) <= set(DESCRIPTIONS) else None
    )
    if not arguments or arguments[0] in ("-h", "--help"):
        print(usage(verbs), end="")
        return ExitCode.OK if arguments else ExitCode.USAGE
    if arguments[0] == "--version":
        print(f"distkeras_grid {metadata.version('distkeras_grid')}")
        return ExitCode.OK
    verb, *rest = arguments
    if verb not in commands:
        near = difflib.get_close_matches(verb, verbs, n=1)
        meant = f" (did you mean {near[0]!r}?)" if near else ""
        known = ", ".join(verbs)
        print(f"distkeras-grid: no verb {verb!r}{meant}. Known: {known}.", file=sys.stderr)
        return ExitCode.USAGE
    command = commands[verb].load()
    # `submit` takes the flags of a job behind its own.
    split = getattr(sys.modules[command.__module__], "split_arguments", None)
    own, of_job = split(rest) if split else (rest, ())
    return run(verb, command, own, of_job)
