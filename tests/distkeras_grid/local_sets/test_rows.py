from dataclasses import replace

import numpy as np
import pytest

from distkeras_grid.errors import GridError
from distkeras_grid.local_sets.rows import LocalRows
from distkeras_grid.local_sets.sampler import TileSampler, digest_of
from distkeras_grid.local_sets.store import LocalPlan
from distkeras_grid.local_sets.tile_index import TileIndex
from distkeras_grid.local_sets.worker_sampler import WorkerSampler
from distkeras_grid.rows import ALIGNMENT
from distkeras_grid.spec import LocalSpec, ScheduleSpec
from tests.distkeras_grid.stores.tables import CLASSES, EACH, FIELD, PIXELS, store_of, write_tiles


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_tiles(tmp_path_factory.mktemp("tiles"))


def rows_of(folder, **more):
    store = store_of(folder)
    return LocalRows(store, store.open(0), **more)


@pytest.mark.parametrize("mapped_bytes", [0, 1 << 20])
def test_a_window_has_its_tiles_in_their_order(folder, mapped_bytes):
    rows = rows_of(folder, mapped_bytes=mapped_bytes)
    window = [np.array([[100, 3], [3, 57]]), np.array([[119]])]
    blocks = list(rows.blocks(window))
    labels = np.repeat(np.arange(6) % CLASSES, EACH)
    for block, places in zip(blocks, window, strict=True):
        np.testing.assert_array_equal(block.x[0], PIXELS[places])
        np.testing.assert_array_equal(block.y[0], labels[places])
        for array in block.arrays:
            assert array.ctypes.data % ALIGNMENT == 0
            assert array.flags.c_contiguous
            assert array.flags.writeable
    assert len(rows) == len(PIXELS)
    rows.close()
    rows.close()


def test_tiles_are_fetched_before_the_first_block_and_once_a_window(folder):
    rows = rows_of(folder)
    window = [np.array([[1, 2]])]
    blocks = rows.blocks(window)
    read, seconds = rows._reader.bytes_read.total(), rows.seconds
    assert min(read, seconds) > 0
    next(blocks)
    list(rows.blocks(window))
    assert (rows._reader.bytes_read.total(), rows.seconds) == (read, seconds)
    former = rows.blocks(window)
    rows.blocks([np.array([[60]])])
    assert rows._reader.bytes_read.total() > read
    with pytest.raises(GridError):
        next(former)
    rows.close()


@pytest.mark.parametrize("place", [-1, 120])
def test_tiles_that_are_not_there_are_refused(folder, place):
    rows = rows_of(folder)
    with pytest.raises(IndexError):
        rows.blocks([np.array([[place]])])
    rows.close()


def plan_of(folder, **recipe):
    store = store_of(folder)
    spec = LocalSpec(**{"local_train": 12, "local_test": 6, "test_images": "others", **recipe})
    nothing = store.pool.select(store.pool.tiles < 0)
    return LocalPlan(store, TileSampler(store.pool, nothing, spec, 3, 2))


@pytest.mark.parametrize(("window", "windows"), [(None, 1), (1, 3), (2, 2)])
def test_a_set_is_told_after_the_last_window_of_its_iteration(folder, window, windows):
    schedule = ScheduleSpec(rows=24, workers=2, batch_size=4, window=window, epochs=3, seed=3)
    plan = plan_of(folder)
    with WorkerSampler(plan, schedule, 1) as work:
        told = []
        for each in work.policy.windows():
            trained = np.concatenate(
                [b.x[0].reshape(-1, *FIELD.shape) for b in work.rows.blocks(each.blocks)]
            )
            places = np.concatenate([b.ravel() for b in each.blocks])
            np.testing.assert_array_equal(trained, PIXELS[places])
            tested = []

            def evaluate(blocks, tested=tested):
                tested += [block.x[0].reshape(-1, *FIELD.shape) for block in blocks]
                return {"loss": 0.5}

            report = work.report(each, evaluate)
            if report is None:
                assert not tested
                continue
            told.append(report)
            test = plan.drawing.test(each.epoch - 1, 1)
            np.testing.assert_array_equal(np.concatenate(tested), PIXELS[test])
        assert each.sequence == 3 * windows - 1
        assert [report.digest for report in told] == [
            digest_of(plan.drawing.train(t, 1)) for t in range(3)
        ]
        for report in told:
            assert (report.train, report.test, report.metrics) == (12, 6, {"loss": 0.5})
            assert report.read_seconds > 0
            assert set(report.bytes_read) == {str(folder)}
        assert min(sum(report.bytes_read.values()) for report in told) > 0
        assert sum(report.read_seconds for report in told) == pytest.approx(work.read_seconds)


def test_a_worker_tells_by_a_digest_what_it_draws_from(folder):
    schedule = ScheduleSpec(rows=24, workers=2, batch_size=4, epochs=1)
    plan = plan_of(folder)
    other = TileIndex.of([EACH] * 6, range(6), [0, 1, 2, 0, 2, 1], CLASSES)
    drawing = replace(plan.drawing, training=other)
    digests = []
    for each in (plan, plan_of(folder), LocalPlan(plan.store, drawing)):
        with WorkerSampler(each, schedule, 0) as work:
            digests.append(work.digest)
    assert digests[0] == digests[1] != digests[2]
    assert len(digests[0]) == 16


def test_without_local_tests_nothing_is_evaluated(folder):
    schedule = ScheduleSpec(rows=24, workers=2, batch_size=4, epochs=1)
    with WorkerSampler(plan_of(folder, local_test=0), schedule, 0) as work:
        (window,) = work.policy.windows()
        report = work.report(window, lambda _: pytest.fail("evaluated"))
        assert (report.test, report.metrics, report.test_seconds) == (0, {}, 0)
