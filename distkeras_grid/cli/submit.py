"""``distkeras-grid submit``: a job on YARN or a standalone cluster, with its own Python."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import distkeras_grid
from distkeras_grid.cli import common_options
from distkeras_grid.cli.console import print_note, print_result
from distkeras_grid.cli.exit_codes import HELP, ExitCode, main_of
from distkeras_grid.cli.parser import Parser, verb_parser
from distkeras_grid.cli.preflight import SubmittedDriver
from distkeras_grid.cli.spinner import spinner
from distkeras_grid.cli.verbs import VERBS
from distkeras_grid.engine.registry import configured_backend
from distkeras_grid.errors import ClusterError, ConfigurationError, GridError
from distkeras_grid.logs import end
from distkeras_grid.progress import surface
from distkeras_grid.submission.applications import new_tag
from distkeras_grid.submission.command import Submission, command_line, keytab_in, parse_settings

if TYPE_CHECKING:
    from distkeras_grid.spark.storage import Storage
    from distkeras_grid.submission.applications import Application
    from distkeras_grid.submission.jvm import HadoopClient
    from distkeras_grid.submission.resource_manager import ResourceManager
    from distkeras_grid.tickets import Keytab

# How much of what a program wrote in a container is shown at its end.
LAST_LINES = 20

JOBS = [name for name, verb in VERBS.items() if verb.on_cluster]

DESCRIPTION = """\
Run a verb, or your own Python file, on YARN or a standalone cluster. The nodes need no Python: the
interpreter and the packages of this environment are packed once, uploaded once, and unpacked once
on each node. Packages and versions are exactly those that are installed here.
"""
EPILOG = """\
examples:
  distkeras-grid submit tile --input hdfs:///raw --output hdfs:///tiles
  distkeras-grid submit --deploy-mode cluster --executors 4 --py-files my_models.py \\
      train --data hdfs:///tiles --split train --features image --model my_models:net \\
      --output hdfs:///runs/first
  distkeras-grid submit --master spark://host:7077 --with scikit-image my_job.py --my-flag 1

Write the flags of the job, and --log-format, after its name. With --deploy-mode client the driver
runs here, its output is shown, and its exit code is that of this command. With cluster the driver
runs in a container: submit waits and prints the state, and status and cancel take the application's
id. Ctrl-C and SIGTERM stop the application in both modes. In client mode the job has a minute for
that, and train writes a last checkpoint. In cluster mode YARN kills the driver, and the last
checkpoint is the one that train --checkpoint-every has written.
"""


def build_parser() -> Parser:
    """Return the parser of the command line."""
    parser = verb_parser("submit", DESCRIPTION, EPILOG)
    _add_where(parser)
    _add_what(parser)
    add = parser.add_argument
    add("job", metavar="JOB", help=f"{', '.join(JOBS)}, or FILE.py")
    add("arguments", nargs=argparse.REMAINDER, metavar="...", help="flags of the job")
    return parser


def _add_where(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("where it runs").add_argument
    add("--master", default="yarn", help="yarn, or spark://host:port (%(default)s)")
    add(
        "--deploy-mode",
        choices=("client", "cluster"),
        default="client",
        help="client: the driver runs here; cluster: in a container (%(default)s)",
    )
    add("--detach", action="store_true", help="cluster mode: do not wait for the end")
    add("--queue", help="queue of YARN (YARN's default)")
    add("--executors", type=int, default=2, metavar="N", help="number of executors (%(default)s)")
    add(
        "--executor-cores",
        type=int,
        default=1,
        metavar="N",
        help="tasks that an executor runs at once (%(default)s)",
    )
    add("--executor-memory", default="1g", metavar="SIZE", help="JVM heap, without Python's (1g)")
    add("--driver-memory", default="1g", metavar="SIZE", help="JVM heap, without Python's (1g)")
    add("--principal", help="Kerberos principal, for jobs that outlive a ticket")
    add("--keytab", metavar="FILE", help="keytab of the principal")
    add(
        "--conf",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="Spark setting, which overrides what submit sets; may be repeated",
    )


def _add_what(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("what goes with it").add_argument
    add(
        "--py-files",
        action="append",
        default=[],
        metavar="FILE[,FILE]",
        help="modules (.py) and packages (.zip) that the job imports; may be repeated",
    )
    add(
        "--with",
        action="append",
        default=[],
        metavar="PACKAGE",
        dest="packages",
        help="another installed package to pack, with what it needs; may be repeated",
    )


def split_arguments(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the flags of submit, the job's name included, and those of the job."""
    parser = build_parser()
    common_options.add_flags(parser)
    own = len(argv) - len(parser.parse_args(argv).arguments)
    return list(argv[:own]), list(argv[own:])


def submit(flags: argparse.Namespace) -> int:
    """Submit as the flags say; return the exit code."""
    from distkeras_grid.submission.jvm import hadoop_client
    from distkeras_grid.submission.resource_manager import resource_manager
    from distkeras_grid.submission.spark_submit import check_hadoop_settings

    submission = planned(flags)
    if submission.on_yarn:
        check_hadoop_settings()
        # What nobody can follow or stop is not begun.
        with resource_manager(keytab_in(submission.client_settings)) as manager:
            manager.applications()
    with ExitStack() as opened:
        with spinner("starting Hadoop's client"):
            hadoop = opened.enter_context(hadoop_client(submission.client_settings))
        check_job(flags, submission, hadoop.storage)
        submission = shipped(submission, flags.packages, hadoop)
        command = _command(submission)
        if submission.in_cluster:
            return in_cluster(command, submission, hadoop, detach=flags.detach)
    return in_client(command, submission)


def planned(flags: argparse.Namespace) -> Submission:
    """Return what is to be submitted, but for the paths of what goes with it."""
    program, arguments, name = resolve_job(flags.job, flags.arguments)
    files = [file for text in flags.py_files for file in text.split(",")]
    for file in [program, *files]:
        if "://" not in file and not Path(file).is_file():
            raise ConfigurationError(f"There is no file {file!r} here; check the path.")
    if flags.detach and flags.deploy_mode != "cluster":
        raise ConfigurationError(
            "--detach goes with --deploy-mode cluster: in client mode the driver runs here."
        )
    return Submission(
        program=program,
        arguments=arguments,
        environment="",
        py_files=files,
        name=name,
        tag=new_tag(),
        backend=configured_backend(),
        settings=parse_settings(flags.conf),
        **{
            name: getattr(flags, name)
            for name in (
                *("master", "deploy_mode", "executors", "executor_cores", "executor_memory"),
                *("driver_memory", "queue", "principal", "keytab"),
            )
        },
    )


def resolve_job(job: str, arguments: Sequence[str]) -> tuple[str, list[str], str]:
    """Return the file that Spark starts, its arguments, and a name for the application.

    The flags of a verb are also parsed here, so that a misspelt one is reported at once.
    `check_job` looks at their values.
    """
    from distkeras_grid.submission import run_verb

    if job.endswith(".py"):
        return job, list(arguments), Path(job).stem
    if job not in JOBS:
        known = ", ".join(JOBS)
        raise ConfigurationError(f"A job is one of {known}, or FILE.py. Received: {job!r}.")
    job_flags(job, arguments)
    return str(run_verb.__file__), [job, *arguments], f"distkeras-grid {job}"


def job_flags(verb: str, arguments: Sequence[str]) -> argparse.Namespace:
    """Return the flags of a verb, without those that every command takes."""
    _, rest = common_options.parse(verb, arguments)
    flags: argparse.Namespace = VERBS[verb].load().build_parser().parse_args(rest)
    return flags


def check_job(flags: argparse.Namespace, submission: Submission, files: Storage) -> None:
    """Refuse wrong flags and paths of a verb, before anything is packed."""
    if flags.job in JOBS:
        place = SubmittedDriver(submission, files)
        VERBS[flags.job].load().check_early(job_flags(flags.job, flags.arguments), place)


def shipped(submission: Submission, packages: Sequence[str], hadoop: HadoopClient) -> Submission:
    """Put the environment and the project where the nodes find them; return the submission."""
    from distkeras_grid.submission.archive import this_environment
    from distkeras_grid.submission.package import write_package
    from distkeras_grid.submission.upload import archive_place, place

    package = write_package(distkeras_grid.__version__)
    environment = this_environment(packages)
    uri = archive_place(environment, hadoop.storage.home())
    print_note(f"looking for the environment at {uri}")
    place(environment, uri, hadoop.storage, surface())
    files = [str(package), *submission.py_files]
    return replace(submission, py_files=files, environment=uri)


def in_client(command: Sequence[str], submission: Submission) -> int:
    """Run the driver here, and return its exit code; an interrupt stops the application, too.

    Write the application's id at the end: at the beginning Spark writes it among its own lines.
    """
    from distkeras_grid.submission.resource_manager import resource_manager
    from distkeras_grid.submission.spark_submit import follow

    keytab = keytab_in(submission.client_settings)
    try:
        code = follow(command)
    except KeyboardInterrupt:
        # Spark tells YARN when it ends in order; one that was killed does not.
        if submission.on_yarn:
            with resource_manager(keytab) as manager:
                stop(manager, submission.tag)
        raise
    if submission.on_yarn:
        tell_at_end(submission.tag, keytab)
    return code


def tell_at_end(tag: str, keytab: Keytab | None) -> None:
    """Write the id of the application with a tag after its driver has ended.

    Nothing is written if YARN does not have it: then the driver ended before it asked for one.
    """
    from distkeras_grid.submission.resource_manager import resource_manager

    try:
        with resource_manager(keytab) as manager:
            application = manager.tagged(tag)
    except GridError as error:
        # The job has ended. That YARN does not answer does not change its exit code.
        print_note(f"see what YARN has of it: distkeras-grid status ({error})")
        return
    if application:
        print_note(f"what its containers wrote: distkeras-grid logs {application.id}")


def in_cluster(
    command: Sequence[str], submission: Submission, hadoop: HadoopClient, *, detach: bool
) -> int:
    """Hand an application over to YARN, wait for its end, and return its exit code."""
    from distkeras_grid.submission.resource_manager import resource_manager, wait

    tag, keytab = submission.tag, keytab_in(submission.client_settings)
    with resource_manager(keytab) as manager:
        try:
            identifier = start(command, tag, manager)
            print_note(f"stop it: distkeras-grid cancel {identifier}")
            if detach:
                return ExitCode.OK
            line = driver_line(identifier, keytab)
            application = wait(manager, identifier, print_note, line)
        except KeyboardInterrupt:
            stop(manager, tag)
            raise
    return ending(application, hadoop)


def driver_line(identifier: str, keytab: Keytab | None) -> Callable[[], str]:
    """Return what tells the last line of an application's driver; empty where nobody tells it."""
    from distkeras_grid.submission.container_logs import RunningLogs, last_line
    from distkeras_grid.submission.resource_manager import resource_manager

    def ask() -> str:
        try:
            with resource_manager(keytab) as manager:
                return last_line(RunningLogs(manager, identifier, print_note, drivers=True))
        except GridError:
            return ""

    return ask


def start(command: Sequence[str], tag: str, manager: ResourceManager) -> str:
    """Hand an application over to YARN, write its id to standard output, and return it."""
    from distkeras_grid.submission.spark_submit import hand_over

    with spinner("submitting"):
        hand_over(command)
    application = manager.tagged(tag)
    if application is None:
        raise ClusterError("YARN has accepted the application, but does not list it.")
    print_result(application.id)
    return application.id


def stop(manager: ResourceManager, tag: str) -> None:
    """Stop the application with a tag, if there is one that goes on; tell how it ended."""
    application = manager.tagged(tag)
    if application is not None and not application.ended:
        print_note(f"stopping {application.id}")
        application = manager.cancel(application.id)
        print_note(f"{application.id}  {application.state}  {application.final}")


def ending(application: Application, hadoop: HadoopClient) -> int:
    """Tell how an application ended, and the end of what its program wrote; return its exit code.

    The program's output goes to standard error: standard output has the application's id alone.
    """
    from distkeras_grid.submission.container_logs import (
        SEARCHED_BYTES,
        cause_in,
        outputs_of_driver,
        wait_for_logs,
    )

    logs = wait_for_logs(hadoop, application)
    if logs and (files := outputs_of_driver(logs)):
        written = end(logs.read(files[0], SEARCHED_BYTES), LAST_LINES)
        if written:
            print_note(f"the end of what the program wrote:\n{written}")
    # What counts comes last, where it is read.
    code: int = ExitCode.OK
    if application.final != "SUCCEEDED":
        if logs and (line := cause_in(logs)):
            print_note(line)
        code, why = verdict(application)
        print_note(f"{application.id} {application.final}: {why}")
    if logs:
        print_note(f"all of it: distkeras-grid logs {application.id}")
    elif page := application.log_page:
        # Nothing was collected, so it still lies on the node.
        print_note(f"what the program wrote: {page}/stdout\nwhat Spark wrote: {page}/stderr")
    return code


def verdict(application: Application) -> tuple[int, str]:
    """Return exit code and cause of an application that did not succeed."""
    code = application.exit_status
    if code is None:
        return ExitCode.CLUSTER, application.diagnostics.strip() or "YARN says no cause"
    meaning = HELP.get(ExitCode(code)) if code in set(ExitCode) else None
    text = f"the program ended with exit code {code}"
    return code, f"{text}: {meaning}" if meaning else text


def _command(submission: Submission) -> list[str]:
    from distkeras_grid.submission.spark_submit import spark_submit_path

    command = command_line(submission, spark_submit=spark_submit_path(), python=sys.executable)
    # Spark would hand this machine's path on to the containers.
    return ["env", "-u", "PYTHONPATH", *command] if "PYTHONPATH" in os.environ else command


main = main_of(build_parser, submit)
