"""Local sets in simulated time: what is drawn, tested and read, and when. Nothing is stored."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, replace

import numpy as np
import pytest

from distkeras_grid.errors import ConfigurationError
from distkeras_grid.feeding.schema import Field
from distkeras_grid.local_sets.drawing import Drawing, digest_of
from distkeras_grid.local_sets.pool import Pool
from distkeras_grid.local_sets.store import LocalPlan
from distkeras_grid.local_sets.work import LocalWork
from distkeras_grid.rules import AveragingRule, DownpourRule, MeanGradientRule
from distkeras_grid.simulation.cluster import Cluster, Outage
from distkeras_grid.simulation.learners import QuadraticLearner
from distkeras_grid.simulation.run import Simulation
from distkeras_grid.spec import LayoutSpec, LocalSpec
from tests.specs import make_spec

POOL = Pool.of([8] * 12, range(12), [0, 1] * 6, 2)
ITERATIONS, BATCH = 3, 2
# A local training set of 6 tiles, a test set of 4.
RECIPE = LocalSpec(local_train=6, local_test=4)
# A tile takes 0.25 s, a batch of training 1 s, one of testing 0.5 s: all sums are exact.
TIMES = {"batch_seconds": 1.0, "tile_seconds": 0.25, "test_batch_seconds": 0.5}


class Reader:
    """Tiles whose one pixel is their number."""

    def __init__(self):
        self.bytes_read, self.failures = Counter(), Counter()

    def read(self, places):
        self.bytes_read["here"] += 4 * len(places)
        yield places, places.astype(np.float32).reshape(-1, 1)

    def close(self):
        pass


@dataclass
class Store:
    pool = POOL
    field = Field("x", (1,), "float32")
    label_name = "label"
    locations = ("here",)

    def open(self, node):  # noqa: ARG002
        return Reader()

    def describe_reading(self, places):  # noqa: ARG002
        return ""


class Learner(QuadraticLearner):
    """Notes the tiles of each window, and of each test with its weights."""

    def __init__(self, kind, trained, tested):
        super().__init__(np.array([8.0]), 1.0, 0.5, local_steps=kind)
        self.trained, self.tested = trained, tested

    def run(self, before, blocks, after):
        blocks = list(blocks)
        self.trained.append((before.tolist(), numbers(blocks)))
        return super().run(before, blocks, after)

    def evaluate(self, weights, blocks):
        blocks = list(blocks)
        self.tested.append((weights.tolist(), numbers(blocks)))
        return super().evaluate(weights, blocks)


def numbers(blocks):
    return np.concatenate([block.x[0].ravel() for block in blocks]).astype(int).tolist()


def drawing_of(recipe=RECIPE, workers=2):
    sides = POOL.images % 3 == 2
    return Drawing(POOL.select(~sides), POOL.select(sides), recipe, 7, workers)


def build(resources, rule=None, window=3, recipe=RECIPE, workers=2, **cluster):
    rule = rule or AveragingRule()
    plan = LocalPlan(Store(), drawing_of(recipe, workers))
    learners = [Learner(rule.traits.local_steps, [], []) for _ in range(workers)]
    state = learners[0].step_section if rule.traits.steps_on_workers else None
    spec = make_spec(
        rule,
        layout=LayoutSpec.of(learners[0].layout, state),
        rows=workers * recipe.local_train,
        workers=workers,
        batch_size=BATCH,
        window=window,
        epochs=ITERATIONS,
        seed=7,
        local=recipe,
        round_timeout=None,
    )
    works = [resources.enter_context(LocalWork(plan, spec.schedule, j)) for j in range(workers)]
    simulation = Simulation(
        Cluster(workers, **{**TIMES, **cluster}),
        spec,
        learners,
        [work.rows for work in works],
        local=works,
    )
    simulation.learners, simulation.works = learners, works
    return simulation


@pytest.fixture
def resources():
    with ExitStack() as stack:
        yield stack


def finished(*args, **kwargs):
    simulation = build(*args, **kwargs)
    simulation.run()
    return simulation


def drawn(simulation):
    return {(r.iteration, r.worker): r.local.digest for r in simulation.history.local_sets}


@pytest.mark.parametrize("window", [1, 2, 3])
@pytest.mark.parametrize(
    "recipe",
    [
        RECIPE,
        LocalSpec(local_train=6, local_test=4, mode="partition"),
        LocalSpec(local_train=6, local_test=4, test_images="others", images_per_class=2),
    ],
)
def test_workers_train_and_test_what_the_run_draws_for_them(resources, window, recipe):
    """The same tiles in the same order as a real worker, whose parts these are."""
    found, drawing = finished(resources, window=window, recipe=recipe), drawing_of(recipe)
    for worker, learner in enumerate(found.learners):
        trained = np.concatenate([tiles for _, tiles in learner.trained])
        expected = [drawing.train(t, worker) for t in range(ITERATIONS)]
        assert trained.tolist() == np.concatenate(expected).tolist()
        assert [tiles for _, tiles in learner.tested] == [
            drawing.test(t, worker).tolist() for t in range(ITERATIONS)
        ]
    assert drawn(found) == {
        (t + 1, j): digest_of(drawing.train(t, j)) for t in range(ITERATIONS) for j in (0, 1)
    }
    for record in found.history.local_sets:
        assert record.folded
        assert (record.local.train, record.local.test) == (6, 4)
        assert set(record.local.metrics) == {"loss"}
        assert record.local.bytes_read == {"here": 4 * 10}


def test_a_set_is_read_before_its_window_and_tested_after_it(resources):
    found = finished(resources, workers=1)
    records = found.history.select(worker=0)
    # Read 1.5 s before it is ready; train 3 s; read 1 s and test 1 s; and again.
    assert [r.started for r in records] == [1.5, 1.5 + 5 + 1.5, 1.5 + 2 * (5 + 1.5)]
    assert [r.folded_at for r in records] == [r.started + 5 for r in records]
    assert [r.seconds for r in records] == [3.0] * ITERATIONS
    assert [(r.local.read_seconds, r.local.test_seconds) for r in found.history.local_sets] == [
        (2.5, 1.0)
    ] * ITERATIONS
    assert [worker.computed for worker in found.workers] == [9.0]


def test_all_wait_for_the_first_set_of_the_slowest(resources):
    found = finished(resources, DownpourRule(), speeds=(1, 0.5))
    first = [found.history.select(worker=j)[0].started for j in (0, 1)]
    assert first == [3.0, 3.0]
    # Then each reads for itself.
    second = [found.history.select(worker=j)[1].started for j in (0, 1)]
    assert second == [3.0 + 5 + 1.5, 3.0 + 10 + 3]


def test_sets_take_no_time_unless_it_is_said(resources):
    found = finished(resources, workers=1, tile_seconds=None, test_batch_seconds=None)
    assert [r.started for r in found.history.records] == [0.0, 3.0, 6.0]


def test_what_is_at_hand_is_not_read_again(resources):
    """All tiles of a split are in each set."""
    recipe = LocalSpec(local_train=64, local_test=32)
    found = finished(resources, workers=1, window=32, recipe=recipe)
    assert [r.local.read_seconds for r in found.history.local_sets] == [24.0, 0.0, 0.0]


def test_a_lost_worker_draws_the_same_and_reads_again(resources):
    outage = Outage(1, at=8.5, seconds=2.0)
    found = finished(resources, DownpourRule(), window=1, outages=[outage])
    assert found.lost == 1
    assert drawn(found) == drawn(finished(resources, DownpourRule(), window=1))
    records = found.history.select(worker=1)
    again = next(record for record in records if record.attempt == 1)
    # It comes back, reads the first window to get ready, and then the one that is next.
    assert again.started == pytest.approx(8.5 + 2.0 + 0.5 + 0.5)
    assert sum(record.samples for record in records) == 6 * ITERATIONS
    # It tells what this attempt has read, and nothing of the one that is gone.
    told = next(each for each in found.history.local_sets if each.attempt == 1)
    windows = sum((r.epoch, r.attempt) == (told.iteration, 1) for r in records)
    assert told.local.read_seconds == 0.5 + 0.5 * windows + 1.0


def test_where_gradients_are_sent_the_test_is_of_the_weights_before(resources):
    for rule, after in ((MeanGradientRule(), False), (AveragingRule(), True)):
        (learner,) = finished(resources, rule, workers=1).learners
        befores = [before for before, _ in learner.trained]
        tested = [weights for weights, _ in learner.tested]
        assert (tested == befores) is not after


def test_tiles_of_one_worker_are_held_at_a_time(resources):
    simulation = build(resources, DownpourRule(), window=1, workers=3)
    while simulation.advance():
        for work in simulation.works:
            assert not len(work.rows._held)
            assert not len(work._tests._held)


def test_works_that_are_not_of_the_run_are_refused(resources):
    one = build(resources, workers=2)
    parts = [work.rows for work in one.works]
    with pytest.raises(ConfigurationError):
        Simulation(one._cluster, one._spec, one.learners, parts, local=one.works[:1])
    small = replace(one.works[0].policy, rows=3)
    one.works[0].policy = small
    with pytest.raises(ConfigurationError):
        Simulation(one._cluster, one._spec, one.learners, parts, local=one.works)
