"""The sandbox itself: real daemons come up, keep what they are given, and leave nothing behind."""

from __future__ import annotations

import dataclasses
import socket
from pathlib import Path

import psutil
import pytest
from hdfs import InsecureClient

from distkeras_grid.cli.exit_codes import ExitCode
from distkeras_grid.cli.sandbox import main
from distkeras_grid.errors import SandboxError
from distkeras_grid.sandbox.cluster import Sandbox
from distkeras_grid.sandbox.daemons import working_below
from tests.hadoop.conftest import Grid

pytestmark = [pytest.mark.hadoop]


def is_open(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(2)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def kill(sandbox: Sandbox, *names: str) -> None:
    processes = [sandbox.daemon(name) for name in names]
    for process in processes:
        process.kill()
    psutil.wait_procs(processes, timeout=10)


@pytest.mark.full
def test_it_keeps_files_over_a_stop_and_leaves_no_process_and_no_port(
    hadoop_jars: list[str], tmp_path: Path
) -> None:
    sandbox = Sandbox(tmp_path / "grid", memory_mb=2048)
    with sandbox:
        first, ports = sandbox.hdfs, sandbox.state.ports
        InsecureClient(sandbox.webhdfs, user="root").write("/kept", b"through the night")
        processes = [sandbox.daemon(name) for name in sandbox.status()]
        sandbox.stop()
    left = {path.name for path in (tmp_path / "grid").iterdir()}
    assert {"hdfs", "logs", "conf", "sandbox.json"} <= left
    assert "yarn" not in left
    assert not sandbox.running()
    assert not any(process.is_running() for process in processes)
    assert not working_below(tmp_path)
    assert not any(map(is_open, dataclasses.astuple(ports)))
    with sandbox:
        assert sandbox.hdfs == first
        with InsecureClient(sandbox.webhdfs, user="root").read("/kept") as reader:
            assert reader.read() == b"through the night"
        # Daemons that have died are started again; stopping the others goes on.
        ended = ("nodemanager", "datanode-0")
        kill(sandbox, *ended)
        assert [name for name, runs in sandbox.status().items() if not runs] == sorted(ended)
        sandbox.start()
        assert all(sandbox.status().values())
        with InsecureClient(sandbox.webhdfs, user="root").read("/kept") as reader:
            assert reader.read() == b"through the night"
        kill(sandbox, "nodemanager")
    assert not sandbox.running()


@pytest.mark.full
def test_a_port_that_is_taken_is_an_error_with_the_log_and_nothing_stays(
    hadoop_jars: list[str], tmp_path: Path
) -> None:
    sandbox = Sandbox(tmp_path / "grid", memory_mb=2048)
    sandbox.layout.root.mkdir()
    sandbox._configure()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", sandbox.state.ports.namenode))
        taken.listen()
        # What the daemon's log says of it.
        with pytest.raises(SandboxError, match="BindException"):
            sandbox.start()
    assert not sandbox.running()
    assert not working_below(tmp_path)


def test_the_status_of_one_that_runs(grid: Grid, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--folder", str(grid.sandbox.layout.root)]) == ExitCode.OK
    assert f"source {grid.sandbox.layout.root}" in capsys.readouterr().out
