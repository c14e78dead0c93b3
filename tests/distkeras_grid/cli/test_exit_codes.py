"""What a command ends with, and what it says then."""

from __future__ import annotations

import inspect

import pytest

from distkeras_grid import errors
from distkeras_grid.cli.exit_codes import HELP, ExitCode, exit_code, exit_codes_help, run_command

NAMES = {
    1: "GridError",
    2: "ConfigurationError UnknownArgumentError",
    3: "DataError SchemaError LabelError EmptyDataError SplitLeakError EmptySplitError ImageError "
    "AmbiguousImageError UnreadableImageError",
    4: "StorageError PathNotFoundError OutputExistsError NoSpaceError LocalDiskError "
    "NotAuthenticatedError",
    5: "EnvironmentMismatchError ClusterError ApplicationNotFoundError NotEnoughSlotsError "
    "StartTimeoutError SandboxError ParameterServerError ServerUnreachableError ProtocolError "
    "LocalProtocolError RemoteProtocolError AuthenticationError RefusedError FencedError",
    6: "NonFiniteCenterError ValidateError OutlierError TrainingError NonFiniteLossError "
    "WorkerFailedError",
    75: "BusyError",
}
EXPECTED = {getattr(errors, name): code for code, text in NAMES.items() for name in text.split()}


def raising(error):
    def command():
        raise error

    return command


def test_the_table_names_every_exception():
    classes = {kind for _, kind in inspect.getmembers(errors, inspect.isclass)}
    assert {kind for kind in classes if issubclass(kind, errors.GridError)} == set(EXPECTED)


@pytest.mark.parametrize(("kind", "code"), EXPECTED.items())
def test_each_exception_has_its_code_and_one_line(kind, code, capsys):
    assert run_command(raising(kind("what came in"))) == code
    told = capsys.readouterr()
    assert told.err == f"{kind.__name__}: what came in\n"
    assert not told.out


def test_success_and_interrupt(capsys):
    assert run_command(lambda: None) == 0
    assert run_command(raising(KeyboardInterrupt())) == 130
    assert capsys.readouterr().err == "interrupted\n"
    assert exit_code(KeyboardInterrupt()) is ExitCode.INTERRUPTED


def test_notes_of_an_exception_stand_in_its_line(capsys):
    for error in (errors.StorageError("refused."), KeyboardInterrupt()):
        error.add_note("kept here")
        error.add_note("and there")
        run_command(raising(error))
    assert capsys.readouterr().err == (
        "StorageError: refused; kept here; and there\ninterrupted; kept here; and there\n"
    )


def test_a_defect_keeps_its_traceback():
    with pytest.raises(ZeroDivisionError):
        run_command(raising(ZeroDivisionError("a defect")))


def test_an_error_of_spark_is_one_line_with_its_cause(capsys):
    from pyspark.errors import PySparkException

    raised = PySparkException(
        "Job aborted: Task 0 failed\n\tat java.Thread\nValueError: no stone\n"
    )
    assert run_command(raising(raised)) == ExitCode.CLUSTER
    told = capsys.readouterr().err
    assert "ValueError: no stone" in told
    assert len(told.splitlines()) == 1


def test_the_help_lists_every_code():
    lines = exit_codes_help().partition("exit codes:\n")[2].splitlines()
    assert [int(line.split()[0]) for line in lines] == [int(code) for code in ExitCode]
    assert set(HELP) == set(ExitCode)
