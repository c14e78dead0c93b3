"""Each verb by ``spark-submit`` on HDFS: on YARN in both modes, and on a standalone master."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hdfs import InsecureClient

from distkeras_grid.submission import run_verb
from tests.cluster import Cluster
from tests.hadoop.conftest import Grid

pytestmark = [pytest.mark.full, pytest.mark.hadoop, pytest.mark.tensorflow]

CLASSES = ("class0", "class1", "class2")
ROOT = "/jobs"
CLUSTER_MODE = ("--deploy-mode", "cluster")


@pytest.fixture(scope="module")
def client(grid: Grid) -> InsecureClient:
    return InsecureClient(grid.sandbox.webhdfs, user="root")


def read_json(client: InsecureClient, path: str) -> Any:
    with client.read(path) as reader:
        return json.load(reader)


def run(grid: Grid, verb: str, *flags: object, options: tuple[str, ...] = ()) -> str:
    ended = grid.submit(*options, str(run_verb.__file__), verb, *map(str, flags))
    assert ended.returncode == 0, ended.stdout[-6000:] + ended.stderr[-6000:]
    return ended.stdout


@pytest.fixture(scope="module")
def tiles(grid: Grid, client: InsecureClient, samples: Path) -> str:
    """Tiles of nine images, cut in client mode."""
    for name in CLASSES:
        for path in sorted((samples / name).glob("*.png"))[:3]:
            client.upload(f"{ROOT}/images/{name}/{path.name}", str(path))
    run(
        grid,
        "tile",
        *("--input", f"hdfs://{ROOT}/images", "--output", f"hdfs://{ROOT}/tiles"),
        *("--tile", 64, "--overlap", 0, "--angles", "0,90", "--split", "0.6:0.2:0.2"),
    )
    return f"hdfs://{ROOT}/tiles"


def train(grid: Grid, project: Path, tiles: str, output: str, options: tuple[str, ...]) -> None:
    """Train with no word about memory: the sandbox's own settings have room for Python."""
    net = project / "tests" / "jobs" / "small_net.py"
    run(
        grid,
        "train",
        *("--data", tiles, "--split", "train", "--validation-split", "validation"),
        *("--model", "small_net:build", "--features", "image", "--trainer", "ADAG"),
        *("--epochs", 2, "--batch-size", 8, "--workers", 2, "--seed", 1, "--output", output),
        options=(*options, "--py-files", str(net)),
    )


def check_run(client: InsecureClient, path: str, master: str) -> None:
    ran = read_json(client, f"{path}/run.json")
    assert ran["master"] == master
    assert ran["samples"] == 2 * ran["spec"]["schedule"]["rows"] > 0
    assert [worker["worker"] for worker in ran["workers"]] == [0, 1]


@pytest.fixture(scope="module")
def trained(grid: Grid, project: Path, tiles: str) -> str:
    """A run in cluster mode: the driver, and with it the server, is in a container."""
    train(grid, project, tiles, f"hdfs://{ROOT}/run-cluster", CLUSTER_MODE)
    return f"hdfs://{ROOT}/run-cluster"


@pytest.fixture(scope="module")
def predicted(grid: Grid, tiles: str, trained: str) -> str:
    run(
        grid,
        "predict",
        *("--data", tiles, "--split", "test", "--model", trained, "--features", "image"),
        *("--output", f"hdfs://{ROOT}/predictions"),
        options=("--conf", "spark.executor.memoryOverhead=1536m"),
    )
    return f"hdfs://{ROOT}/predictions"


def test_tiles_lie_on_hdfs_with_what_describes_them(client: InsecureClient, tiles: str) -> None:
    manifest = read_json(client, f"{ROOT}/tiles/_versions/0.json")
    assert manifest["image"]["distkeras_grid"]["shape"] == [64, 64, 1]
    splits = {"split=train", "split=validation", "split=test"}
    assert splits <= set(client.list(f"{ROOT}/tiles/{manifest['shards'][0]}"))


def test_training_with_the_driver_in_a_container(client: InsecureClient, trained: str) -> None:
    check_run(client, f"{ROOT}/run-cluster", "yarn")


def test_training_with_the_driver_here(
    grid: Grid, client: InsecureClient, project: Path, tiles: str
) -> None:
    train(grid, project, tiles, f"hdfs://{ROOT}/run-client", ())
    check_run(client, f"{ROOT}/run-client", "yarn")


@pytest.mark.parametrize("kind", ["png", "huggingface"])
def test_exports_go_to_hdfs_by_the_tasks_themselves(
    grid: Grid, client: InsecureClient, tiles: str, kind: str
) -> None:
    output = f"{ROOT}/export-{kind}"
    run(
        grid,
        "export",
        *("--data", tiles, "--format", kind, "--split", "test", "--output", f"hdfs://{output}"),
    )
    counts = read_json(client, f"{ROOT}/tiles/_versions/0.json")["counts"]["test"]
    files = [
        f"{folder}/{name}"
        for folder, _, names in client.walk(output)
        for name in names
        if not name.startswith(("_", "."))
    ]
    assert files
    if kind == "png":
        assert len([name for name in files if name.endswith(".png")]) == sum(counts.values())
    assert all(client.status(name)["length"] > 0 for name in files)
    assert not [name for name in client.list(ROOT) if name.endswith(".tmp")]


def test_evaluation_in_cluster_mode(grid: Grid, client: InsecureClient, predicted: str) -> None:
    run(
        grid,
        "evaluate",
        *("--data", predicted, "--output", f"hdfs://{ROOT}/figures.json"),
        options=CLUSTER_MODE,
    )
    figures = read_json(client, f"{ROOT}/figures.json")
    assert sum(map(sum, figures["confusion"])) == figures["rows"] > 0


def test_a_standalone_master_reads_and_writes_hdfs(
    grid: Grid, client: InsecureClient, project: Path, tiles: str, cluster: Cluster
) -> None:
    hadoop = {"HADOOP_CONF_DIR": grid.environment()["HADOOP_CONF_DIR"]}
    ended = cluster.submit(
        *("--py-files", str(project / "tests" / "jobs" / "small_net.py")),
        *(
            str(run_verb.__file__),
            "train",
            "--data",
            tiles,
            "--split",
            "train",
            "--model",
            "small_net:build",
        ),
        *("--features", "image", "--epochs", "2", "--batch-size", "8", "--workers", "2"),
        *("--output", f"hdfs://{ROOT}/run-standalone"),
        **hadoop,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    check_run(client, f"{ROOT}/run-standalone", cluster.url)
