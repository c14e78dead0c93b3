"""`distkeras-grid submit`: jobs on YARN whose containers have the shipped Python and no other."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hdfs import InsecureClient

from distkeras_grid.cli.exit_codes import ExitCode
from tests.hadoop.conftest import Grid, read_json, upload_samples, wait_for

pytestmark = [pytest.mark.hadoop, pytest.mark.tensorflow]

ROOT = "/submit"
# Without Spark's page: in client mode its start and YARN's filter for it may meet (a race in Spark
# 4.3, ConcurrentModificationException in ServletHandler.initialize).
SMALL = (
    *("--executor-memory", "512m", "--driver-memory", "512m"),
    *("--conf", "spark.ui.enabled=false"),
)
CLUSTER = ("--deploy-mode", "cluster")

#: Writes which Python runs driver and executors, and then waits to be cancelled.
PROBE = """
import json, os, sys, time
from helping import looked_up
from distkeras_grid.spark.session import build_session
from distkeras_grid.spark.storage import Storage
spark = build_session("probe")
seen = {
    "driver": looked_up(),
    "executors": spark.sparkContext.parallelize(range(2), 2).map(lambda _: looked_up()).collect(),
    "arguments": sys.argv[1:],
}
Storage(spark).write_text(sys.argv[1], json.dumps(seen))
time.sleep(600)
"""
HELPING = """
def looked_up():
    import sys
    from importlib.util import find_spec
    import distkeras_grid
    return {
        "python": sys.executable,
        "tensorflow": find_spec("tensorflow").origin,
        "package": distkeras_grid.__file__,
        "path": sys.path,
    }
"""


@pytest.fixture(scope="module")
def images(client: InsecureClient, samples: Path) -> str:
    return upload_samples(client, samples, f"{ROOT}/images")


def submit(grid: Grid, *arguments: str) -> subprocess.CompletedProcess[str]:
    return grid.grid("submit", *SMALL, *arguments, timeout=600)


def succeed(grid: Grid, *arguments: str) -> subprocess.CompletedProcess[str]:
    ended = submit(grid, *arguments)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended


@pytest.fixture(scope="module")
def tiles(grid: Grid, images: str) -> str:
    done = succeed(
        grid,
        *(*CLUSTER, "tile", "--input", images, "--output", f"{ROOT}/tiles"),
        *("--tile", "64", "--overlap", "0", "--angles", "0", "--split", "0.7:0.3"),
    )
    assert re.fullmatch(r"application_\d+_\d+\n", done.stdout)
    # As in client mode, the last lines tell what was written.
    assert "the end of what the program wrote:" in done.stderr
    assert f"{ROOT}/tiles" in done.stderr
    return f"{ROOT}/tiles"


@pytest.fixture(scope="module")
def trained(grid: Grid, tiles: str, project: Path) -> str:
    succeed(
        grid,
        *(*CLUSTER, "--py-files", str(project / "tests" / "jobs" / "small_net.py")),
        *("train", "--data", tiles, "--split", "train", "--model", "small_net:build"),
        *("--features", "image", "--trainer", "ADAG", "--workers", "2", "--batch-size", "8"),
        *("--output", f"{ROOT}/run"),
    )
    return f"{ROOT}/run"


def test_a_tiled_data_set_is_trained_on_in_containers(
    client: InsecureClient, tiles: str, trained: str
) -> None:
    assert "_versions" in client.list(tiles)
    assert set(client.list(trained)) == {"model.keras", "history.jsonl", "run.json"}
    run = read_json(client, f"{trained}/run.json")
    assert run["master"] == "yarn"
    assert [worker["worker"] for worker in run["workers"]] == [0, 1]
    assert run["samples"] == run["spec"]["schedule"]["rows"]


@pytest.mark.full
def test_a_failing_job_tells_its_cause_and_its_exit_code_from_the_container(
    grid: Grid, client: InsecureClient
) -> None:
    # With a pattern: of a plain path `submit` itself would ask WebHDFS.
    done = submit(grid, *CLUSTER, "--executors", "1", "evaluate", "--data", f"{ROOT}/nowhere/*")
    assert done.returncode == ExitCode.STORAGE, done.stderr
    assert "PathNotFoundError: " in done.stderr
    (identifier,) = re.findall(r"distkeras-grid logs (application_\d+_\d+)", done.stderr)
    logs = grid.grid("logs", identifier, "--driver", "--lines", "5")
    assert logs.stdout.startswith("PathNotFoundError: "), logs.stdout + logs.stderr
    assert f"== {identifier.replace('application', 'container')}_01_000001 " in logs.stdout
    assert identifier in grid.grid("status").stdout
    folder = "/user/root/.distkeras_grid/environments"
    (archive,) = client.list(folder)
    assert archive.startswith("environment-")
    assert client.status(folder)["permission"] == "755"
    assert client.status(f"{folder}/{archive}")["permission"] == "644"


@pytest.mark.full
def test_a_program_of_the_user_finds_its_modules_and_only_what_was_shipped_then_it_is_cancelled(
    grid: Grid, client: InsecureClient, tmp_path: Path
) -> None:
    (tmp_path / "probe.py").write_text(PROBE)
    (tmp_path / "helping.py").write_text(HELPING)
    done = grid.grid(
        *("submit", *SMALL, *CLUSTER, "--detach", "--py-files", str(tmp_path / "helping.py")),
        *(str(tmp_path / "probe.py"), f"{ROOT}/seen.json", "a b"),
    )
    assert done.returncode == 0, done.stderr
    identifier = done.stdout.strip()
    try:
        wait_for(lambda: client.status(f"{ROOT}/seen.json", strict=False))
        status = grid.grid("status", identifier)
        assert status.returncode == 0, status.stderr
        assert "RUNNING" in status.stdout
    finally:
        cancelled = grid.grid("cancel", identifier)
    assert cancelled.stdout.split() == [identifier, "KILLED", "KILLED"]
    assert grid.grid("status", identifier).returncode == ExitCode.CLUSTER
    seen = read_json(client, f"{ROOT}/seen.json")
    assert seen["arguments"] == [f"{ROOT}/seen.json", "a b"]
    for process in (seen["driver"], *seen["executors"]):
        assert process["python"].endswith("/environment/bin/python")
        assert "/environment/lib/" in process["tensorflow"]
        assert re.search(r"/distkeras_grid-[^/]*\.zip/", process["package"])
        ours = [path for path in process["path"] if path.startswith((sys.prefix, sys.base_prefix))]
        # Spark puts the jar of its core on Python's path, here where the sandbox's Spark lies.
        assert [path for path in ours if not path.endswith(".jar")] == []


@pytest.mark.full
@pytest.mark.parametrize("mode", ["client", "cluster"])
def test_sigterm_stops_the_application(
    grid: Grid, client: InsecureClient, tmp_path: Path, mode: str
) -> None:
    (tmp_path / "probe.py").write_text(PROBE)
    (tmp_path / "helping.py").write_text(HELPING)
    seen = f"{ROOT}/terminated-{mode}.json"
    with grid.background(
        *("submit", *SMALL, "--deploy-mode", mode, "--conf", f"spark.app.name=terminated-{mode}"),
        *("--py-files", str(tmp_path / "helping.py"), str(tmp_path / "probe.py"), seen),
    ) as process:
        wait_for(lambda: client.status(seen, strict=False), process)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=120)
    assert process.returncode == ExitCode.INTERRUPTED, err
    assert err.endswith("interrupted\n")
    listed = grid.grid("status").stdout.splitlines()
    (line,) = [line for line in listed if line.endswith(f"  terminated-{mode}")]
    assert line.split()[1] in ("SUCCEEDED", "FAILED", "KILLED")


def test_what_is_not_on_hdfs_or_would_be_replaced_there_is_refused_before_anything_is_packed(
    grid: Grid, client: InsecureClient, images: str
) -> None:
    client.write(f"{ROOT}/taken/thesis.txt", data=b"precious", overwrite=True)
    lost, raw, taken = "/nowhere", images, f"{ROOT}/taken"
    for arguments, error in (
        (("evaluate", "--data", lost), "PathNotFoundError: --data"),
        (("tile", "--input", raw, "--output", taken), "OutputExistsError: "),
    ):
        refused = submit(grid, *CLUSTER, *arguments)
        assert refused.returncode == ExitCode.STORAGE
        assert error in refused.stderr
