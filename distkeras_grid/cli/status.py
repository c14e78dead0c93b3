"""``distkeras-grid status``: how an application of YARN is."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from contextlib import closing
from datetime import datetime
from typing import TYPE_CHECKING

from distkeras_grid.cli import keytabs
from distkeras_grid.cli.console import note, report, tell
from distkeras_grid.cli.exit_codes import ExitCode, guarded
from distkeras_grid.cli.parser import verb_parser
from distkeras_grid.errors import ApplicationNotFoundError, ClusterError

if TYPE_CHECKING:
    from distkeras_grid.submission.applications import Application
    from distkeras_grid.submission.resource_manager import ResourceManager
    from distkeras_grid.submission.yarn import Yarn
    from distkeras_grid.tickets import Keytab

DESCRIPTION = """\
Show the state of an application of YARN, as YARN's page tells it. HADOOP_CONF_DIR says which YARN.
The exit code is 0 if the application waits, runs or has succeeded. If it has failed, the exit code
is that of its program, or 5 if YARN does not know it. `distkeras-grid logs` shows what it wrote.
"""


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = verb_parser("status", DESCRIPTION)
    parser.add_argument("id", metavar="ID", help="application_..., as printed by submit")
    keytabs.add_flags(parser)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    flags = build_parser().parse_args(argv)
    return guarded(lambda: status(flags))


def status(flags: argparse.Namespace) -> int:
    """Print how an application is; return the exit code."""
    from distkeras_grid.cli.submit import verdict

    application = looked_up(flags.id, keytabs.named(flags))
    report(application=application.id, state=application.state, final=application.final)
    tell(describe(application))
    if not application.ended or application.final == "SUCCEEDED":
        return ExitCode.OK
    code, why = verdict(application)
    note(f"{why}\nwhat it wrote: distkeras-grid logs {application.id}")
    return code


def looked_up(identifier: str, keytab: Keytab | None) -> Application:
    """Return the state of an application: from YARN's page, or else by YARN's own client.

    Parameters
    ----------
    identifier : str
    keytab : Keytab or None
        Gets the tickets; by default those of ``kinit`` are taken.

    Raises
    ------
    ConfigurationError
        If the text is not an application's id, or nothing says where YARN is.
    ApplicationNotFoundError
        If YARN does not know it.
    ClusterError
        If YARN answers in neither way.
    """
    return asked(
        identifier,
        keytab,
        lambda manager: manager.application(identifier),
        lambda yarn: yarn.application(identifier),
    )


def asked(
    identifier: str,
    keytab: Keytab | None,
    by_page: Callable[[ResourceManager], Application],
    by_client: Callable[[Yarn], Application],
) -> Application:
    """Return what YARN's page tells of an application, or else YARN's own client."""
    from distkeras_grid.submission.applications import check_id
    from distkeras_grid.submission.jvm import hadoop_client, kerberos_settings
    from distkeras_grid.submission.resource_manager import ResourceManager
    from distkeras_grid.submission.yarn import yarn_client
    from distkeras_grid.submission.yarn_sites import find_resourcemanager

    check_id(identifier)
    with closing(ResourceManager(find_resourcemanager(keytab))) as manager:
        try:
            return by_page(manager)
        except ApplicationNotFoundError:
            raise
        except ClusterError as error:
            # The page may be closed where the client's port is open.
            note(f"{error} Asking YARN's own client.")
    with hadoop_client(kerberos_settings(keytab)) as hadoop, yarn_client(hadoop) as yarn:
        return by_client(yarn)


def describe(application: Application) -> str:
    """Return what is known of an application, a line each."""
    ended = f", {application.final}" if application.ended else ""
    lines = {
        "application": f"{application.id} ({application.name})",
        "user": f"{application.user}, queue {application.queue}",
        "state": f"{application.state}{ended}",
        "uses": f"{application.containers} containers, {application.memory_mb} MB",
        "started": moment(application.started),
        "finished": moment(application.finished),
        "page": application.tracking_url,
    }
    return "\n".join(f"{name:<12} {value}" for name, value in lines.items() if value)


def moment(seconds: float) -> str:
    """Return a time for a person, in the zone of this machine; nothing for 0."""
    if not seconds:
        return ""
    return datetime.fromtimestamp(seconds).astimezone().isoformat(sep=" ", timespec="seconds")
