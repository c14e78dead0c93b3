"""Where a run's rows are stored, if at all, and when they are deleted."""

from __future__ import annotations

import pytest

from distkeras_grid.checkpoints import FORMAT, CheckpointManifest, Driver
from distkeras_grid.errors import StorageError
from distkeras_grid.spark.checkpoints import CheckpointStore
from distkeras_grid.spark.columns import resolve_columns
from distkeras_grid.spark.storage import Storage
from distkeras_grid.trainers import row_storage
from distkeras_grid.trainers.row_storage import RowMaterializer

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def frame(spark):
    return spark.range(11, numPartitions=3).selectExpr(
        "cast(id % 3 as int) as label", "array(cast(id as float), 1.0f) as f"
    )


def settled(frame, checkpoints=None, stored=None, notes=None):
    storage = RowMaterializer(checkpoints, stored, ([] if notes is None else notes).append)
    return storage.settled(frame, resolve_columns(frame, "f", "label"))


def test_rows_that_are_the_same_each_time_are_not_stored(frame):
    with settled(frame) as (rows, stored):
        assert (rows, stored) == (frame, None)


def test_in_local_mode_the_local_disk_is_enough(frame):
    notes = []
    with settled(frame.repartition(2), notes=notes) as (rows, stored):
        assert stored is None
        assert rows.is_cached
    assert notes == []


@pytest.mark.parametrize("saved", [False, True])
def test_they_stay_with_a_checkpoint_and_are_read_again(frame, spark, tmp_path, saved):
    store, shuffled, notes = (
        CheckpointStore(Storage(spark), str(tmp_path), Driver("tests")),
        frame.repartition(2),
        [],
    )
    with settled(shuffled, store, notes=notes) as (rows, stored):
        first = sorted(tuple(row) for row in rows.collect())
        store.begin(anew=True)
        if saved:
            manifest = CheckpointManifest(
                FORMAT, 1, "run", 0.0, 1, 0, 0, {}, False, (), stored.name
            )
            store.write(manifest, {}, {})
    assert len(notes) == 1
    assert (tmp_path / stored.name).exists() == saved
    if saved:
        folder = store.rows_of(store.newest(print).manifest)
        with settled(shuffled, store, folder) as (rows, again):
            assert sorted(tuple(row) for row in rows.collect()) == first
            assert again.folder.endswith(stored.name)


def test_in_the_home_directory_they_are_private_and_stay_for_the_run(frame, tmp_path, monkeypatch):
    """As on a cluster whose default file system is HDFS."""
    root = tmp_path / ".distkeras_grid" / "rows"
    monkeypatch.setattr(row_storage, "scratch_folder", lambda _: str(root))
    with settled(frame.repartition(2)) as (rows, stored):
        assert rows.count() == 11
        assert stored.folder.startswith(f"file:{root}/rows-")
        assert root.stat().st_mode & 0o777 == 0o700
    assert list(root.iterdir()) == []
    root.parent.rename(tmp_path / "gone")
    (tmp_path / ".distkeras_grid").write_text("")
    with pytest.raises(StorageError, match="checkpoint_dir"), settled(frame.repartition(2)):
        pass


def test_a_place_that_cannot_be_written_ends_the_run_before_it_begins(frame, spark, tmp_path):
    (tmp_path / "file").write_text("")
    store = CheckpointStore(Storage(spark), str(tmp_path / "file"), Driver("tests"))
    with pytest.raises(StorageError, match="file"), settled(frame.repartition(2), store):
        pass
