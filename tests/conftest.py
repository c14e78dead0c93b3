"""Fixtures shared by all tests."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import warnings
from collections.abc import Iterator
from multiprocessing.util import get_temp_dir
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from tests.class_archive import java_options
from tests.cluster import JAVA_OPTIONS, Cluster, standalone_cluster
from tests.leaks import MARK, RUN_GRACE_SECONDS, held, held_by_runs, left

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Set before TensorFlow is imported anywhere, in this process and in Spark's Python workers.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
# The workers' kernels, so that driver and workers can be compared bit for bit.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
# Every driver's JVM, in subprocesses and notebooks too: on two cores the second compiler costs a
# test's short queries more than it gains.
os.environ.setdefault("SPARK_SUBMIT_OPTS", JAVA_OPTIONS)

# A machine that is busy with other tests is no defect: examples have no time limit.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")

#: What shares a sandbox or a cluster stays in one process. The longest come first, so that no
#: process ends long before the other.
GROUPS = ("hadoop", "cluster", "notebook", "spark", "tensorflow")
WITH_JAVA = GROUPS[:4]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give each test its group (pytest -n 2), and put the groups in order."""
    ranks: dict[Path, int] = {}
    for item in items:
        kinds = [name for name in GROUPS if item.get_closest_marker(name)]
        shared = [name for name in kinds if name in ("hadoop", "cluster")]
        # The tests of a file share its fixtures.
        item.add_marker(pytest.mark.xdist_group(shared[0] if shared else str(item.path)))
        rank = GROUPS.index(kinds[0]) if kinds else len(GROUPS)
        ranks[item.path] = min(rank, ranks.get(item.path, rank))
    items.sort(key=lambda item: ranks[item.path])


def pytest_collection_finish(session: pytest.Session) -> None:
    """Let the JVMs of this session start quickly, where there will be any."""
    needs = any(item.get_closest_marker(name) for item in session.items for name in WITH_JAVA)
    if needs and not session.config.option.collectonly:
        options = os.environ["SPARK_SUBMIT_OPTS"]
        if options == JAVA_OPTIONS:
            folder = Path(__file__).parent.parent / "build" / "tests"
            os.environ["SPARK_SUBMIT_OPTS"] = java_options(folder, options)


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A standalone master with two workers of one core each, for all tests on one."""
    with standalone_cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A local session with two task slots and retries, shared by all tests."""
    from distkeras_grid.spark.session import build_session

    warehouse = tmp_path_factory.mktemp("warehouse")
    session = build_session(
        "distkeras_grid tests",
        master="local[2,4]",
        settings={"spark.sql.warehouse.dir": str(warehouse), "spark.sql.shuffle.partitions": "2"},
    )
    yield session
    session.stop()
    with warnings.catch_warnings():
        # Py4J's sockets are closed by the garbage collector.
        warnings.simplefilter("ignore", ResourceWarning)
        import gc

        gc.collect()


@pytest.fixture(scope="session")
def project() -> Path:
    return Path(__file__).parent.parent


@pytest.fixture(scope="session")
def samples(project: Path) -> Path:
    """The micrographs that ship with the project, one folder a class."""
    return project / "data_prep" / "samples"


@pytest.fixture(scope="session")
def event_loop() -> None:
    """Start the event loop that Zarr keeps for the whole process, with its sockets."""
    import zarr.core.sync

    zarr.core.sync._get_loop()


@pytest.fixture(autouse=True)
def _nothing_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that leaves a process, thread, descriptor, port or temporary folder.

    Spark and TensorFlow keep theirs for the whole session. Of their tests only parameter servers
    are looked for.
    """
    if sys.platform != "linux":
        yield
        return
    if any(request.node.get_closest_marker(name) for name in GROUPS):
        before = held_by_runs(tempfile.gettempdir())
        yield
        assert left(before, tempfile.gettempdir(), RUN_GRACE_SECONDS, held_by_runs) == {}
        return
    folder = request.getfixturevalue("_own_folder")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", folder)
        patch.setenv("TMPDIR", folder)
        before = held(folder)
        yield
        found = left(before, folder)
    if "temporary" in found:
        # The next test finds none of it.
        shutil.rmtree(folder)
        os.mkdir(folder)
    assert found == {}


@pytest.fixture(scope="session")
def _own_folder() -> Iterator[str]:
    """Return the folder for temporary files of tests without Spark, each of which leaves it empty.

    It is one for all, because to make and remove a folder takes longer than most of these tests.
    """
    folder = tempfile.mkdtemp(prefix="dkg-")
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(autouse=True, scope="session")
def _of_this_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Mark the processes that begin in this session, and give them a folder for temporary files.

    Other sessions of tests may run on this machine, and leave what they leave.
    """
    # pytest's own folder comes first, or it would lie in that of the session.
    tmp_path_factory.getbasetemp()
    # So does that of multiprocessing, which deletes it when the process exits, and writes a
    # traceback if somebody else has.
    get_temp_dir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(MARK, str(os.getpid()))
        if sys.platform != "linux":
            yield
            return
        # This folder is none of a run: pytest may run in a test.
        folder = tempfile.mkdtemp(prefix="tests-")
        patch.setattr(tempfile, "tempdir", folder)
        patch.setenv("TMPDIR", folder)
        yield
    # Spark's workers may still write there.
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(autouse=True, scope="session")
def _same_interpreter() -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable


@pytest.fixture
def handlers() -> Iterator[None]:
    """The handlers of signals, which nbclient replaces by those of a fresh Python."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
