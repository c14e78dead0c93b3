"""A path is read as it is; any other DataFrame is written once, as it first was."""

import stat
from pathlib import Path

import pytest
from pyspark.sql import functions as F

from distkeras_grid.checkpoints import FORMAT, CheckpointManifest, Driver
from distkeras_grid.errors import ClusterError, NoSpaceError, PathNotFoundError, StorageError
from distkeras_grid.feeding.schema import Field
from distkeras_grid.spark import materialized_rows as module
from distkeras_grid.spark.checkpoints import CheckpointStore
from distkeras_grid.spark.columns import resolve_columns
from distkeras_grid.spark.dataframes import as_dataframe
from distkeras_grid.spark.internals import temporary_directory
from distkeras_grid.spark.materialized_rows import IDENTITY, materialized, read_rows, store_rows
from distkeras_grid.spark.storage import Storage

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def files(spark, tmp_path_factory):
    """Return rows of Parquet files."""
    folder = tmp_path_factory.mktemp("rows") / "files"
    rows = spark.range(11, numPartitions=3).selectExpr(
        "id", "cast(id % 3 as int) as label", "array(cast(id as float), 1.0f) as f"
    )
    rows.write.parquet(str(folder))
    return spark.read.parquet(str(folder))


@pytest.fixture
def odd(files):
    """Return sorted rows whose columns have names that Parquet refuses, and metadata."""
    field = Field("f.1, x", (2,), "float32")
    feature = F.col("f").alias(field.name, metadata=field.to_metadata())
    ordered = files.orderBy("id", ascending=False)
    return ordered.select("id", F.col("label").alias("LABEL (x)"), feature)


def test_they_are_stored_with_names_metadata_and_order(odd, tmp_path):
    columns = resolve_columns(odd, "f.1, x", "LABEL (x)")
    stored = store_rows(odd, columns, str(tmp_path / "rows"))
    assert stored.frame.columns == ["LABEL (x)", "f.1, x", IDENTITY]
    assert stored.frame.schema["f.1, x"].metadata == odd.schema["f.1, x"].metadata
    rows = stored.frame.orderBy(IDENTITY).collect()
    assert [row["f.1, x"] for row in rows] == [[float(10 - number), 1.0] for number in range(11)]
    assert stored.seconds > 0
    assert stored.bytes == stored.to_json()["bytes"] > 0
    again = read_rows(odd, columns, stored.folder)
    assert again.frame.orderBy(IDENTITY).collect() == rows
    assert (again.seconds, again.name) == (0.0, "rows")
    # No other user may read them.
    assert stat.S_IMODE((tmp_path / "rows").stat().st_mode) == 0o700


def test_a_forbidden_place_is_named_and_nothing_is_left(odd, tmp_path):
    (tmp_path / "file").write_text("")
    columns = resolve_columns(odd, "f.1, x", "LABEL (x)")
    with pytest.raises(StorageError, match="file/rows"):
        store_rows(odd, columns, str(tmp_path / "file" / "rows"))


@pytest.mark.promise(
    "disk of stored rows: full",
    "One `NoSpaceError` before any worker starts; nothing is left.",
)
@pytest.mark.parametrize(
    ("told", "error"),
    [
        ("broken", ClusterError),
        # The task that writes them fails with the words of the JVM.
        ("java.io.IOException: No space left on device", NoSpaceError),
    ],
)
def test_rows_that_cannot_be_computed_or_have_no_room_leave_nothing(files, tmp_path, told, error):
    broken = files.withColumn("f", F.expr(f"if(id = 7, raise_error('{told}'), f)")).orderBy("id")
    columns = resolve_columns(files, "f", "label")
    with pytest.raises(error, match=told):
        store_rows(broken, columns, str(tmp_path / "rows"))
    assert list(tmp_path.iterdir()) == []


def test_stored_rows_of_other_columns_or_nowhere_are_refused(odd, files, tmp_path):
    columns = resolve_columns(odd, "f.1, x", "LABEL (x)")
    stored = store_rows(odd, columns, str(tmp_path / "rows"))
    with pytest.raises(StorageError, match="columns"):
        read_rows(files, resolve_columns(files, "f", "label", "id"), stored.folder)
    with pytest.raises(PathNotFoundError):
        read_rows(odd, columns, str(tmp_path / "missing"))


def written(frame, checkpoints=None, earlier=None, notes=None):
    say = ([] if notes is None else notes).append
    columns = resolve_columns(frame, "f", "label")
    return materialized(frame, columns, checkpoints=checkpoints, earlier=earlier, say=say)


def test_a_path_is_read_as_it_is(files, spark):
    (path,) = {Path(name.removeprefix("file:")).parent for name in files.inputFiles()}
    data = as_dataframe(spark, str(path))
    with written(data) as (rows, stored):
        assert (rows, stored) == (data, None)


def test_any_other_dataframe_is_written_where_the_session_ends_it(files, spark):
    """Also one of files: its plan is not looked at."""
    notes = []
    with written(files, notes=notes) as (rows, stored):
        folder = Path(stored.folder.removeprefix("file:"))
        assert folder.is_relative_to(temporary_directory(spark))
        assert rows.count() == 11
    assert not folder.exists()
    assert len(notes) == 1
    assert stored.folder in notes[0]


@pytest.mark.parametrize("saved", [False, True])
def test_they_stay_with_a_checkpoint_and_are_read_again(files, spark, tmp_path, saved):
    store = CheckpointStore(Storage(spark), str(tmp_path), Driver("tests"))
    with written(files, store) as (rows, stored):
        first = sorted(tuple(row) for row in rows.collect())
        store.begin(anew=True)
        if saved:
            manifest = CheckpointManifest(
                FORMAT, 1, "run", 0.0, 1, 0, 0, {}, False, (), stored.name
            )
            store.write(manifest, {})
    assert (tmp_path / stored.name).exists() == saved
    if saved:
        folder = store.rows_of(store.newest(print).manifest)
        with written(files, store, folder) as (rows, again):
            assert sorted(tuple(row) for row in rows.collect()) == first
            assert again.folder.endswith(stored.name)


def test_on_a_cluster_they_are_in_the_home_directory_for_the_run(files, tmp_path, monkeypatch):
    """As where HDFS is the default; what a killed driver has left goes after 30 days."""
    root = tmp_path / ".distkeras_grid" / "rows"
    former = root / "rows-20260101-ab"
    former.mkdir(parents=True)
    monkeypatch.setattr(module, "local_cores", lambda _: None)
    monkeypatch.setattr(Storage, "home", lambda _: str(tmp_path))
    with written(files) as (rows, stored):
        assert rows.count() == 11
        assert stored.folder.startswith(f"file:{root}/rows-")
        assert root.stat().st_mode & 0o777 == 0o700
        assert not former.exists()
    assert list(root.iterdir()) == []
    root.parent.rename(tmp_path / "gone")
    (tmp_path / ".distkeras_grid").write_text("")
    with pytest.raises(StorageError, match="checkpoint_dir"), written(files):
        pass


def test_a_folder_that_executors_do_not_have_is_refused_before_they_write(
    files, tmp_path, monkeypatch
):
    monkeypatch.setattr(module, "local_cores", lambda _: None)
    monkeypatch.setattr(Storage, "make_dirs", lambda *_: None)
    with pytest.raises(StorageError, match="checkpoint_dir"):
        store_rows(files, resolve_columns(files, "f", "label"), str(tmp_path / "rows"))
    assert list(tmp_path.iterdir()) == []
