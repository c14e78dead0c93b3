"""The parser of every command, and the flags that several commands share."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Mapping
from typing import Any, NoReturn

from distkeras_grid.cli.console import print_error
from distkeras_grid.cli.exit_codes import ExitCode, exit_codes_help
from distkeras_grid.tickets import Keytab, keytab_of

#: For the help texts of all verbs that speak to HDFS.
ADDRESS = """\
The address of WebHDFS is taken from --url, from the variable WEBHDFS_URL, or from the configuration
files in HADOOP_CONF_DIR, in this order."""


class Parser(argparse.ArgumentParser):
    """Parser of a command line. The list of all flags is left to ``--help``."""

    def __init__(self, **options: Any) -> None:
        options.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(**options)

    def replace_help(self, texts: Mapping[str, str]) -> None:
        """Replace what the help text says of some flags; `argparse.SUPPRESS` leaves one out."""
        for flag, text in texts.items():
            self._option_string_actions[flag].help = text

    def error(self, message: str) -> NoReturn:
        """Report a mistake in one line, and exit with the code of wrong flags."""
        _, unrecognized, words = message.partition("unrecognized arguments: ")
        flags = self._option_string_actions if unrecognized else ()
        if near := difflib.get_close_matches(words.partition(" ")[0], flags, n=1):
            message += f" (did you mean {near[0]}?)"
        print_error(f"{self.prog}: {message}. See {self.prog} --help.")
        raise SystemExit(int(ExitCode.USAGE))


def verb_parser(verb: str, description: str, examples: str = "") -> Parser:
    """Return the parser of a verb, whose help text ends with the exit codes."""
    epilog = f"{examples}\n" if examples else ""
    return Parser(
        prog=f"distkeras-grid {verb}",
        description=description,
        epilog=epilog + exit_codes_help(),
    )


def columns(text: str) -> str | list[str]:
    """Return the name of a column, or a list of the names between commas.

    Examples
    --------
    >>> columns("image"), columns("image,age")
    ('image', ['image', 'age'])
    """
    return text.split(",") if "," in text else text


def add_master_flag(parser: argparse.ArgumentParser) -> None:
    """Add the flag that says where Spark runs."""
    parser.add_argument(
        "--master", help="Spark master of a session started here (default: local[*,4])"
    )


def add_selection_flags(parser: argparse.ArgumentParser, split: str) -> None:
    """Add the flags that select rows of a data set of tiles; `split` is the help of ``--split``."""
    add = parser.add_argument
    add("--split", help=split)
    add(
        "--fold",
        metavar="NAME",
        help="take the splits as this fold divides the data, such as fold_0; see distkeras-grid "
        "folds (none)",
    )
    add(
        "--data-version",
        metavar="N|HASH",
        help="former version of the data set of tiles, as distkeras-grid versions lists it (the "
        "present one)",
    )


def add_keytab_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags by which a command without a ticket of ``kinit`` authenticates."""
    parser.add_argument(
        "--principal", metavar="NAME", help="whose tickets to get with --keytab, without kinit"
    )
    parser.add_argument("--keytab", metavar="FILE", help="keytab of the principal")


def keytab(flags: argparse.Namespace) -> Keytab | None:
    """Return the keytab that the flags name; None if they name none."""
    named = keytab_of(flags.principal, flags.keytab)
    if named is not None:
        named.check()
    return named


def add_hdfs_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags that say how HDFS is reached."""
    parser.add_argument(
        "--url",
        metavar="URL",
        help="http://NAMENODE:9870; two NameNodes with ';' between them if HDFS is highly "
        "available (WEBHDFS_URL, or from HADOOP_CONF_DIR)",
    )
    parser.add_argument(
        "--kerberos",
        action="store_true",
        default=None,
        help="authenticate with the ticket of kinit (from HADOOP_CONF_DIR)",
    )
    add_keytab_flags(parser)


def add_transfer_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``put`` and ``get``."""
    add_hdfs_flags(parser)
    parser.add_argument(
        "--threads", type=int, default=4, metavar="N", help="files copied at once, 1 to 64 (4)"
    )
    parser.add_argument(
        "--overwrite", action="store_true", help="replace existing files that differ"
    )


def hdfs_options(flags: argparse.Namespace) -> dict[str, Any]:
    """Return what the functions of `webhdfs` take of these flags."""
    options = {"url": flags.url, "kerberos": keytab(flags) or flags.kerberos}
    if hasattr(flags, "threads"):
        options |= {"threads": flags.threads, "overwrite": flags.overwrite}
    return options
