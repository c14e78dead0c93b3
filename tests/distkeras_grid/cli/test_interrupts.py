"""Commands that are interrupted while Spark works for them."""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
import time

import pytest
from py4j.protocol import Py4JNetworkError
from pyspark.errors import PySparkException

from distkeras_grid.cli.common_options import run
from distkeras_grid.cli.exit_codes import ExitCode, run_command
from distkeras_grid.errors import ClusterError
from tests.cluster import driver_environment
from tests.distkeras_grid.cli.interrupted_job import TASKS

TIMEOUT = 240.0


@pytest.mark.spark
@pytest.mark.full
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_command_that_is_interrupted_while_spark_writes_ends_in_few_words(
    project, tmp_path, number
):
    command = [sys.executable, "-m", "tests.distkeras_grid.cli.interrupted_job", str(tmp_path)]
    process = subprocess.Popen(
        command, cwd=project, env=driver_environment(), stderr=subprocess.PIPE, text=True
    )
    try:
        until = time.monotonic() + TIMEOUT
        while len([*tmp_path.glob("task-*")]) < TASKS:
            assert process.poll() is None
            assert time.monotonic() < until
            time.sleep(0.05)
        process.send_signal(number)
        _, told = process.communicate(timeout=TIMEOUT)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 130, told
    assert told.splitlines()[-1] == "interrupted"
    for word in ("Traceback", "KeyboardInterrupt", "\tat ", " ERROR "):
        assert word not in told, told
    # No task writes any more, so the hidden folder does not come back.
    assert {path.name for path in tmp_path.iterdir()} == {f"task-{n}" for n in range(TASKS)}


def interrupted_and_then(error):
    def command():
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt:
            raise error  # noqa: B904

    return command


def test_what_spark_and_we_say_of_an_interrupted_job_is_an_interrupt(capsys):
    cancelled, ours = PySparkException("Job 3 cancelled"), ClusterError("Spark gave up on the job")
    ours.__cause__ = cancelled
    for error in (cancelled, ours, Py4JNetworkError("Error while sending or receiving")):
        assert run_command(interrupted_and_then(error)) == 130
        assert capsys.readouterr().err == "interrupted\n"


def test_what_else_an_interrupt_has_brought_to_light_is_told_with_its_own_code(capsys):
    with pytest.raises(TypeError):
        run_command(interrupted_and_then(TypeError("a defect")))

    def gone():
        raise Py4JNetworkError("Answer from Java side is empty")

    with pytest.raises(Py4JNetworkError):
        run_command(gone)
    assert run_command(interrupted_and_then(ClusterError("It still runs."))) == ExitCode.CLUSTER
    assert capsys.readouterr().err == "ClusterError: It still runs.\n"


def test_what_py4j_logs_of_an_interrupt_is_left_out_while_a_command_runs(caplog):
    def log(module):
        where = (f"/lib/{module}.py", 1070, "while sending command", (), None)
        logging.getLogger().handle(logging.LogRecord("root", logging.ERROR, *where))

    def command(_):
        log("java_gateway")
        logging.getLogger("py4j.clientserver").error("while shutting down connection")
        log("mine")
        return 0

    assert run("tile", command, []) == 0
    assert [record.module for record in caplog.records] == ["mine"]
    log("java_gateway")
    assert len(caplog.records) == 2
