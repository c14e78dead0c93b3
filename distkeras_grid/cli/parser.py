"""The parser of every command: it names a misspelt flag, and reports a mistake in one line."""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn

from distkeras_grid.cli.console import print_error
from distkeras_grid.cli.exit_codes import ExitCode, exit_codes_help


class Parser(argparse.ArgumentParser):
    """Parser of a command line.

    A flag that does not exist is reported before flags that are missing: whoever misspells a
    required flag reads its name. The list of all flags is left to ``--help``.
    """

    def __init__(self, **options: Any) -> None:
        options.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(**options)

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse flags; see `argparse.ArgumentParser.parse_args`."""
        words = sys.argv[1:] if args is None else args
        if (unknown := self.unknown_flag(words)) is not None:
            near = difflib.get_close_matches(unknown, self._flags(), n=1)
            self.error(f"no flag {unknown}" + (f" (did you mean {near[0]}?)" if near else ""))
        return super().parse_args(words, namespace)

    def unknown_flag(self, args: Sequence[str]) -> str | None:
        """Return the first flag that does not exist, None if all do.

        Arguments of a job, behind the job's name, are not looked at.
        """
        flags = self._flags()
        ends = any(action.nargs == argparse.REMAINDER for action in self._actions)
        words = iter(args)
        for word in words:
            if word == "--" or (ends and not word.startswith("-")):
                return None
            name, sign, _ = word.partition("=")
            if not name.startswith("--"):
                continue
            # As argparse does, take the beginning of a flag for the flag.
            matches = [flag for flag in flags if flag.startswith(name)]
            if not matches:
                return name
            if not sign and flags[matches[0]].nargs is None:
                next(words, None)  # The flag's value.
        return None

    def replace_help(self, texts: Mapping[str, str]) -> None:
        """Replace what the help text says of some flags; `argparse.SUPPRESS` leaves one out."""
        flags = self._flags()
        for flag, text in texts.items():
            flags[flag].help = text

    def error(self, message: str) -> NoReturn:
        """Report a mistake in one line, and exit with the code of wrong flags."""
        print_error(f"{self.prog}: {message}. See {self.prog} --help.")
        raise SystemExit(int(ExitCode.USAGE))

    def _flags(self) -> dict[str, argparse.Action]:
        return dict(self._walk())

    def _walk(self) -> Iterator[tuple[str, argparse.Action]]:
        for action in self._actions:
            yield from ((flag, action) for flag in action.option_strings)
            if isinstance(action.choices, dict):
                for parser in action.choices.values():
                    yield from parser._walk()


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
