"""What HDFS does to a user: nodes that die, a restarted NameNode, quotas, safe mode, permissions.

Either the right rows come out, or one clear error, and the same job completes afterwards.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hdfs import InsecureClient

from data_prep import TileSpec, TilingSettings, tile_images
from distkeras_grid import ADAG, read_tiles
from distkeras_grid.cli.exit_codes import ExitCode
from distkeras_grid.errors import NoSpaceError, StorageError
from distkeras_grid.sandbox.cluster import Sandbox
from tests.hadoop.conftest import SCRIPT, first_samples, upload_samples, wait_for

pytestmark = [pytest.mark.full, pytest.mark.hadoop, pytest.mark.spark]

SPEC = TileSpec(64, overlap=0.5, angles=(0, 30))


@pytest.fixture(scope="module")
def shaky(hadoop_jars: list[str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    """A sandbox of its own with two DataNodes, for these tests break it."""
    with Sandbox(tmp_path_factory.mktemp("shaky"), datanodes=2, memory_mb=2048) as sandbox:
        yield sandbox


@pytest.fixture(scope="module")
def client(shaky: Sandbox) -> InsecureClient:
    return InsecureClient(shaky.webhdfs, user="root")


@pytest.fixture(scope="module")
def images(shaky: Sandbox, client: InsecureClient, samples: Path) -> str:
    """Six images on HDFS."""
    return shaky.hdfs + upload_samples(client, samples, "/images")


@pytest.fixture(scope="module")
def expected(spark: Any, samples: Path, tmp_path_factory: pytest.TempPathFactory) -> set[Any]:
    """The same tiles, cut from local files."""
    folder = tmp_path_factory.mktemp("local")
    for path in first_samples(samples):
        copy = folder / "images" / path.parent.name / path.name
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())
    settings = TilingSettings(
        str(folder / "images"), str(folder / "tiles"), SPEC, split="0.7:0.3", seed=1
    )
    tile_images(settings, spark=spark, say=lambda _: None)
    return rows_of(spark, str(folder / "tiles"))


def rows_of(spark: Any, path: str) -> set[Any]:
    """Every tile by its place, split and pixels."""
    frame = spark.read.parquet(path)
    rows = frame.select("source", "angle", "x", "y", "split", "label", "image").collect()
    assert len({(r.source, r.angle, r.x, r.y) for r in rows}) == len(rows)
    return {(*row[:-1], hash(bytes(row.image))) for row in rows}


def settings_for(shaky: Sandbox, images: str, name: str) -> TilingSettings:
    return TilingSettings(images, f"{shaky.hdfs}/{name}/tiles", SPEC, split="0.7:0.3", seed=1)


@contextmanager
def killed_while_spark_works(spark: Any, shaky: Sandbox, daemon: str) -> Iterator[None]:
    """Kill a daemon once a stage of Spark has run a task; start it again afterwards."""
    tracker = spark.sparkContext.statusTracker()
    killed = threading.Event()

    def watch() -> None:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and not killed.is_set():
            stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
            if any(stage and stage.numActiveTasks for stage in stages):
                os.kill(shaky.daemon(daemon).pid, signal.SIGKILL)
                killed.set()
            time.sleep(0.02)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield
        assert killed.is_set(), "nothing ran while the test watched"
    finally:
        killed.set()
        watcher.join()
        if not shaky.status()[daemon]:
            shaky.start()


def wait_for_copies(spark: Any, folder: str) -> None:
    """Wait until every block lies on both DataNodes: who has one copy loses it with its node."""
    path = spark._jvm.org.apache.hadoop.fs.Path(folder)
    files = path.getFileSystem(spark._jsc.hadoopConfiguration())

    def fewest() -> int:
        counts, found = [], files.listFiles(path, True)
        while found.hasNext():
            counts += [len(block.getNames()) for block in found.next().getBlockLocations()]
        return min(counts)

    wait_for(lambda: fewest() >= 2)


@pytest.mark.promise(
    "DataNode: killed while tiles are cut",
    "All tiles are written, once.",
)
def test_a_datanode_dies_during_tiling(
    spark: Any, shaky: Sandbox, images: str, expected: set[Any]
) -> None:
    settings = settings_for(shaky, images, "dying")
    with killed_while_spark_works(spark, shaky, "datanode-1"):
        tile_images(settings, spark=spark, say=lambda _: None)
    assert rows_of(spark, settings.output) == expected


@pytest.mark.tensorflow
@pytest.mark.promise(
    "DataNode: killed during a training",
    "The run ends as without.",
)
def test_a_datanode_dies_during_training(spark: Any, shaky: Sandbox, images: str) -> None:
    from tests.jobs.small_net import build

    settings = settings_for(shaky, images, "trained")
    tile_images(settings, spark=spark, say=lambda _: None)
    wait_for_copies(spark, settings.output)
    train, _ = read_tiles(settings.output)
    trainer = ADAG(build((64, 64, 1), 2), num_workers=2, batch_size=8, features_col="image")
    with killed_while_spark_works(spark, shaky, "datanode-0"):
        trainer.train(train, seed=1)
    assert trainer.history.samples == train.count()


@pytest.mark.promise(
    "NameNode: restarted between two jobs",
    "The next job works, at the latest when it is run again.",
)
def test_the_namenode_restarts_between_two_jobs(
    spark: Any, shaky: Sandbox, images: str, expected: set[Any]
) -> None:
    """A session that talked to the NameNode of before may hear that once; then all is as it was."""
    settings = settings_for(shaky, images, "restarted")
    namenode = shaky.daemon("namenode")
    namenode.terminate()
    namenode.wait(timeout=60)
    shaky.start()
    try:
        tile_images(settings, spark=spark, say=lambda _: None)
    except StorageError:
        tile_images(settings, spark=spark, say=lambda _: None)
    assert rows_of(spark, settings.output) == expected


@pytest.fixture
def administrator(spark: Any, shaky: Sandbox) -> tuple[Any, Any]:
    """The file system as HDFS's own administrator has it, and Hadoop's classes beside it."""
    classes = spark.sparkContext._jvm.org.apache.hadoop.fs
    path = classes.Path(f"{shaky.hdfs}/")
    return path.getFileSystem(spark.sparkContext._jsc.hadoopConfiguration()), classes


@pytest.fixture
def check_refused_and_rerun(
    spark: Any, shaky: Sandbox, images: str, client: InsecureClient, expected: set[Any]
) -> Callable[[str, type[Exception], Callable[[], object]], None]:
    """One clear error, nothing half written, and a rerun that completes."""

    def check(name: str, kind: type[Exception], mend: Callable[[], object]) -> None:
        settings = settings_for(shaky, images, name)
        with pytest.raises(kind) as caught:
            tile_images(settings, spark=spark, say=lambda _: None)
        assert type(caught.value) is kind
        assert "\n" not in str(caught.value)
        mend()
        assert client.status(f"/{name}", strict=False) is None or client.list(f"/{name}") == []
        tile_images(settings, spark=spark, say=lambda _: None)
        assert rows_of(spark, settings.output) == expected

    return check


@pytest.mark.promise(
    "HDFS: a quota is full",
    "One `NoSpaceError`; nothing is half written, and the job completes later.",
)
def test_a_quota_that_is_full(
    client: InsecureClient, administrator: tuple[Any, Any], check_refused_and_rerun: Any
) -> None:
    files, classes = administrator
    client.makedirs("/small")

    def quota(size: int) -> None:
        files.setQuota(classes.Path("/small"), (1 << 63) - 1, size)

    quota(1 << 20)
    check_refused_and_rerun("small", NoSpaceError, lambda: quota(-1))


@pytest.mark.promise(
    "HDFS: in safe mode",
    "One `StorageError`; nothing is half written, and the job completes later.",
)
def test_safe_mode(administrator: tuple[Any, Any], check_refused_and_rerun: Any) -> None:
    files, classes = administrator
    files.setSafeMode(classes.SafeModeAction.ENTER)
    leave = classes.SafeModeAction.LEAVE
    check_refused_and_rerun("safe", StorageError, lambda: files.setSafeMode(leave))


def test_a_user_without_permission(shaky: Sandbox, client: InsecureClient, images: str) -> None:
    client.makedirs("/closed", permission="700")
    ended = subprocess.run(
        [
            *(SCRIPT, "tile", "--input", images),
            *("--output", f"{shaky.hdfs}/closed/tiles", "--tile", "64", "--overlap", "0"),
            *("--angles", "0", "--master", "local[2,4]"),
        ],
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, **shaky.environment(), "HADOOP_USER_NAME": "alice"},
    )
    assert ended.returncode == ExitCode.STORAGE, ended.stdout + ended.stderr
    last = ended.stderr.strip().splitlines()[-1]
    assert last.startswith("StorageError: ")
    assert "alice" in last
    assert client.list("/closed") == []
