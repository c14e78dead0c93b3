"""A worker that dies in a run on local sets draws the same again, and no set counts twice."""

from __future__ import annotations

import numpy as np
import pytest

from distkeras_grid import Field, LocalSets, catalogue_tiles
from distkeras_grid.trainers.local_data import LocalData
from tests.faults.counting import at_epoch, attempts, counting_model, kill, negative_sum, worker_pid

pytestmark = [pytest.mark.faults, pytest.mark.spark, pytest.mark.tensorflow, pytest.mark.full]

ROWS, ITERATIONS = 300, 12


@pytest.mark.promise(
    "worker: killed, on local sets",
    "Its next attempt draws the same sets; exact.",
)
def test_each_weight_tells_how_often_its_row_was_drawn(spark, tmp_path):
    from distkeras_grid import DOWNPOUR

    path = str(tmp_path / "rows")
    rows = spark.range(ROWS, numPartitions=3).selectExpr("cast(id as float) x", "0 as label")
    rows.write.parquet(path)
    field, noted = Field("x", (1,), "float32"), tmp_path / "noted"
    noted.mkdir()
    sets = LocalSets(path, iterations=ITERATIONS, local_train=60, split=None)
    loss = negative_sum(noted)
    trainer = DOWNPOUR(
        counting_model(ROWS, loss),
        num_workers=2,
        batch_size=4,
        communication_window=3,
        features_col=field,
        custom_objects={"loss": loss},
        progress=False,
    )
    killer = at_epoch(3, lambda: kill(worker_pid(noted, seat=0)))
    model = trainer.train(sets, seed=1, callbacks=[killer])
    assert len(attempts(noted, 0)) == 2
    found = catalogue_tiles(path, features_col=field, hashed=False)
    drawing = LocalData(sets, found).plan(1, 2).drawing
    drawn = [drawing.train(t, j) for t in range(ITERATIONS) for j in range(2)]
    # Tiles are numbered in the order of the files.
    reader = found.store.open(0)
    values = np.empty(ROWS, int)
    for places, features in reader.read(np.arange(ROWS)):
        values[places] = features[:, 0].astype(int)
    expected = np.bincount(values[np.concatenate(drawn)], minlength=ROWS)
    np.testing.assert_array_equal(model.get_weights()[0][:, 0], expected)
    assert sorted({(r.iteration, r.worker) for r in trainer.history.local_sets}) == [
        (t, j) for t in range(1, ITERATIONS + 1) for j in (0, 1)
    ]
