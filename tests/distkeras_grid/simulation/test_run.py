"""What happens when, on a simulated cluster. The losses are parabolas; the times are exact."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distkeras_grid import plots
from distkeras_grid.errors import (
    NonFiniteLossError,
    StartTimeoutError,
    TrainingError,
    ValidateError,
    WorkerFailedError,
)
from distkeras_grid.feeding.source import ArraySource
from distkeras_grid.history import History
from distkeras_grid.rules import (
    AveragingRule,
    DeepGradientCompression,
    DownpourRule,
    DynamicRateRule,
    ElasticRoundRule,
    ElasticRule,
    MeanGradientRule,
    SequentialRule,
    rule_of,
)
from distkeras_grid.simulation.cluster import Cluster, Outage
from distkeras_grid.simulation.run import Simulation
from distkeras_grid.spec import Outliers, RunSpec
from distkeras_grid.weights import Variable, WeightLayout
from tests.quadratic_learner import QuadraticLearner
from tests.specs import simulated_spec


def build(
    rule=None,
    *,
    rows=(4, 4),
    start=(8.0, 4.0),
    aim=1.0,
    window=1,
    rate=0.5,
    evaluate=None,
    run=None,
    layout=None,
    targets=(),
    validate=None,
    **cluster,
):
    """A run with one row a batch, unless said otherwise on vectors of 2 scalars, 8 bytes."""
    rule, start = rule or DownpourRule(), np.asarray(start)
    aims = [*targets, *[aim] * (len(rows) - len(targets))]
    seats = [
        ArraySource([np.full((count, start.size), aim)], [np.zeros(count)])
        for count, aim in zip(rows, aims, strict=True)
    ]
    learners = [
        QuadraticLearner(start, 1.0, rate, local_steps=rule.traits.local_steps) for _ in rows
    ]
    for learner in learners:
        learner.layout = layout or learner.layout
    terms = {"window": window, **(run or {})}
    return Simulation(
        Cluster(len(rows), **{"batch_seconds": 1.0, **cluster}),
        simulated_spec(rule, learners, seats, **terms),
        learners.__getitem__,
        seats,
        evaluate,
        validate=validate,
    )


def finished(*args, **kwargs):
    simulation = build(*args, **kwargs)
    simulation.run()
    return simulation


def folds(simulation, worker=None):
    return [record.folded_at for record in simulation.history.select(worker=worker)]


def starts(simulation, worker):
    return [record.started for record in simulation.history.select(worker=worker)]


# -- time ---------------------------------------------------------------------------------------


def test_a_step_is_asked_for_after_its_round():
    """The commit, the round's end, the question for its step, the step: each takes the latency."""
    found = finished(MeanGradientRule(), rows=[2], latency=0.25, bandwidth=16.0)
    # The center comes in 0.5 s and the latency; a commit takes 0.5 s, and a step as long.
    assert starts(found, 0) == [0.75, 0.75 + 1.0 + 0.75 + 0.75 + 0.5]
    np.testing.assert_array_equal(found.center, [2.75, 1.75])


@pytest.mark.parametrize(
    "rule",
    [
        *(DownpourRule(0.3), DynamicRateRule(), ElasticRule(0.3), AveragingRule()),
        *(ElasticRoundRule(0.3), MeanGradientRule()),
    ],
)
@pytest.mark.parametrize("aim", [1e6, np.nan])
def test_a_poisoned_worker_is_left_out_and_the_others_reach_their_aim(rule, aim):
    """Worker 2 has targets that are wrong, from its first window on."""
    judged = {"outliers": Outliers(), "on_nonfinite": "skip", "epochs": 4}
    found = finished(rule, rows=(8, 8, 8), targets=[1.0, 1.0, aim], run=judged)
    assert np.abs(found.center - 1).max() < 0.5
    assert {(record.worker, record.samples) for record in found.history.skipped} == {(2, 1)}
    assert len(found.history.skipped) == 8 * 4
    lines = [*found.history.lines()]
    assert [*History.from_lines(lines).lines()] == lines
    assert found.samples == found.history.samples == 2 * 8 * 4


def test_without_a_filter_a_poisoned_worker_spoils_the_center():
    found = finished(rows=(8, 8, 8), targets=[1e6], run={"epochs": 4})
    assert np.abs(found.center).max() > 1e5
    with pytest.raises(NonFiniteLossError):
        finished(rows=(8, 8, 8), targets=[np.nan])


@pytest.mark.parametrize("rule", [DownpourRule(0.3), AveragingRule(), MeanGradientRule()])
def test_windows_that_a_function_of_the_users_is_against_are_left_out(rule):
    found = finished(
        rule,
        rows=(8, 8, 8),
        targets=[1e6],
        run={"epochs": 4},
        validate=lambda loss, *_: "far" if loss > 1e6 else None,
    )
    assert np.abs(found.center - 1).max() < 0.5
    assert {(record.worker, record.reason) for record in found.history.skipped} == {(0, "far")}
    assert found.samples == 2 * 8 * 4


def test_a_function_of_the_users_that_fails_ends_the_run():
    with pytest.raises(ValidateError, match="ZeroDivisionError"):
        finished(validate=lambda *_: 1 / 0)


def test_a_run_of_which_nothing_can_be_folded_ends():
    with pytest.raises(TrainingError, match="could be folded"):
        finished(rows=(8, 8), targets=[np.nan, np.nan], run={"on_nonfinite": "skip", "epochs": 3})


def test_who_was_late_asks_for_all_steps_since():
    """Speed 0.3: the other's rounds 1 to 3 close while it computes its first window."""
    found = finished(
        MeanGradientRule(),
        rows=[4, 2],
        speeds=[1.0, 0.3],
        latency=0.015625,
        run={"quorum": 0.5},
    )
    (late, *_) = found.history.late
    assert (late.worker, late.staleness) == (1, 3)
    assert found.workers[1].version == 3


def test_a_fast_worker_takes_less_time():
    found = finished(speeds=[1.0, 2.0])
    assert folds(found, 0) == [1.0, 2.0, 3.0, 4.0]
    assert folds(found, 1) == [0.5, 1.0, 1.5, 2.0]
    assert [worker.computed for worker in found.workers] == [4.0, 2.0]


def test_the_last_window_takes_as_long_as_its_batches():
    found = finished(rows=[5], window=2)
    assert [record.seconds for record in found.history.records] == [2.0, 2.0, 1.0]


def test_a_network_takes_latency_and_bytes_each_way():
    """8 bytes at 16 bytes/s are half a second, one way 1/4 s: 3/4 s to start, 2.5 s a window."""
    found = finished(rows=[2], latency=0.25, bandwidth=16.0)
    assert starts(found, 0) == [0.75, 3.25]
    assert folds(found) == [2.5, 5.0]
    assert found.now == 5.0 + 0.75 + 0.25


def test_a_rule_without_replies_has_none_on_the_network():
    found = finished(SequentialRule(), rows=[2], bandwidth=8.0)
    assert starts(found, 0) == [1.0, 3.0]


def test_compressed_exchanges_are_shorter_and_lose_digits():
    """The center comes whole at the start, 0.5 s; commits and replies are rounded, 0.25 s each."""
    found = finished(rows=[3], rate=1e-3, bandwidth=16.0, run={"compression": "bfloat16"})
    assert starts(found, 0) == [0.5, 2.0, 3.5]
    center = np.array([8.0, 4.0])
    x = center
    for _ in range(3):
        center = center + bfloat16(-1e-3 * (x - 1.0))
        x = bfloat16(center)
    np.testing.assert_array_equal(found.center, center)
    assert found.history.records[0].bytes_up == finished(rows=[1]).history.records[0].bytes_up - 4


#: One of 4 numbers travels, 8 bytes of 16; the minimum is at 0.
SPARSE = {
    "rows": [3],
    "start": np.array([8, 4, 3, 2], np.float32),
    "aim": 0.0,
    "layout": WeightLayout((Variable("kernel", (4, 1)),)),
    "run": {"compression": DeepGradientCompression(sparsity=0.75, warm_up_epochs=0)},
    "bandwidth": 16.0,
}


@pytest.mark.parametrize("rule", [DownpourRule(), MeanGradientRule()])
def test_sparse_exchanges_take_the_bytes_of_what_is_sent_and_hold_the_rest_back(rule):
    """The center comes whole, in a second; half a second each way for what is sent."""
    found = finished(rule, **SPARSE)
    records = found.history.records
    assert [record.started for record in records] == [1.0, 3.0, 5.0]
    assert [record.folded_at - record.started for record in records] == [1.5, 1.5, 1.5]
    # Each time half of the largest gradient goes, of which so far 1, 2 and 3 were held back.
    np.testing.assert_array_equal(found.center, [4, 0, -1.5, 2])


def test_what_was_held_back_is_lost_with_its_worker():
    found = build(**SPARSE, outages=[Outage(0, at=5.5, seconds=1.0)])
    worker = found.workers[0]
    while worker.attempt < 1:
        held_back = worker._core._accumulator
        found.advance()
    assert (held_back.residual != 0).any()
    while worker._core.phase == "starting":
        found.advance()
    assert (worker._core._accumulator.residual == 0).all()


def bfloat16(values):
    """Round to 8 significant bits."""
    scale = 2.0 ** (np.floor(np.log2(np.abs(values))) - 7)
    return np.round(values / scale) * scale


def test_workers_share_the_link_of_the_server():
    found = finished(rows=[1, 1, 1], server_bandwidth=8.0)
    assert [starts(found, worker)[0] for worker in range(3)] == [1.0, 2.0, 3.0]
    assert folds(found) == [3.0, 4.0, 5.0]
    found = finished(rows=[1, 1, 1], bandwidth=8.0)
    assert folds(found) == [3.0, 3.0, 3.0]


def test_exponential_times_have_their_mean_and_seeds_of_their_own():
    found = finished(rows=[400, 400], times="exponential")
    seconds = np.array(
        [[r.seconds for r in found.history.select(worker=worker)] for worker in range(2)]
    )
    assert abs(seconds.mean() - 1.0) < 4 / np.sqrt(800)
    assert abs((seconds > 1.0).mean() - np.exp(-1)) < 0.07
    assert (seconds[0] != seconds[1]).all()


def test_stragglers_are_a_share_of_the_windows():
    found = finished(rows=[400], straggler_probability=0.75, straggler_factor=5.0)
    seconds = np.array([record.seconds for record in found.history.records])
    assert set(seconds) == {1.0, 5.0}
    assert abs((seconds == 5.0).mean() - 0.75) < 4 * np.sqrt(0.25 * 0.75 / 400)


def test_a_seed_decides_all_that_is_drawn_whatever_the_rule():
    first, again, other, rounds = (
        finished(rule, rows=[9, 9], times="exponential", straggler_probability=0.2, seed=seed)
        for rule, seed in ((None, 1), (None, 1), (None, 2), (AveragingRule(), 1))
    )
    assert [*first.history.lines()] == [*again.history.lines()]
    assert folds(first) != folds(other)
    for worker in range(2):
        seconds = [[r.seconds for r in f.history.select(worker=worker)] for f in (first, rounds)]
        assert seconds[0] == seconds[1]


# -- who is there -------------------------------------------------------------------------------


def test_nobody_starts_before_all_are_there():
    found = finished(late={1: 2.5})
    assert starts(found, 0)[0] == starts(found, 1)[0] == 2.5
    assert found.history.training_seconds() == 4.0


def test_who_is_lost_while_it_waits_for_the_start_waits_again():
    found = finished(late={1: 2.5}, outages=[Outage(0, at=1.0, seconds=0.5)])
    assert starts(found, 0)[0] == 2.5
    assert {record.attempt for record in found.history.select(worker=0)} == {1}
    assert found.history.samples == 8


def test_another_attempt_has_an_engine_of_its_own(monkeypatch):
    """It is told how many batches of its seat are in the center already."""
    told = []
    monkeypatch.setattr(QuadraticLearner, "set_schedule_offset", lambda _, n: told.append(n))
    finished(rows=[9], window=2, outages=[Outage(0, at=5.0, seconds=1.0)])
    assert told == [0, 4]


def test_a_lost_worker_does_its_window_again_from_the_center_that_it_comes_back_to():
    found = finished(outages=[Outage(1, at=1.5, seconds=1.0)])
    assert starts(found, 1) == [0.0, 2.5, 3.5, 4.5]
    assert [r.attempt for r in found.history.select(worker=1)] == [0, 1, 1, 1]
    assert [r.window for r in found.history.select(worker=1)] == [0, 1, 2, 3]
    assert found.lost == 1
    assert [(w.worker, w.status) for w in found.history.workers if w.attempt or w.status == "lost"]
    assert "lost" in [w.status for w in found.history.workers]


def test_what_is_on_its_way_is_lost_with_its_worker():
    """Sent at 1 s, lost at 1.25 s, due at 1.5 s."""
    found = finished(rows=[1, 1], latency=0.5, outages=[Outage(1, at=1.75, seconds=10.0)])
    assert folds(found, 0) == [2.0]
    assert starts(found, 1) == [12.25]


def test_an_outage_of_who_is_not_there_is_none():
    found = finished(rows=[1, 4], outages=[Outage(0, at=3.0), Outage(0, at=3.5)])
    assert found.lost == 0
    assert found.history.num_updates == 5


def test_a_worker_that_waits_for_its_round_is_missed_there():
    found = finished(
        AveragingRule(), rows=[2, 2], speeds=[1.0, 0.25], outages=[Outage(0, at=2.0, seconds=4.0)]
    )
    assert starts(found, 0) == [6.0, 7.0]
    assert folds(found) == [7.0, 7.0, 11.0, 11.0]


@pytest.mark.parametrize("rule", [DownpourRule(), AveragingRule()])
def test_who_never_comes_back_is_waited_for_as_long_as_in_a_real_run(rule):
    """An asynchronous run goes on: the other worker ends at 4 s, and then nobody is there."""
    found = build(rule, outages=[Outage(1, at=1.5)], run={"start_timeout": 50.0})
    with pytest.raises(StartTimeoutError):
        found.run()
    began = 4.0 if rule == DownpourRule() else 1.5
    assert found.now == pytest.approx(began + 50.0 + 0.1)


def test_who_comes_later_than_the_start_may_take_is_not_waited_for_and_trains_its_rows():
    found = finished(late={1: 60.0}, run={"start_timeout": 50.0})
    assert starts(found, 0)[0] == pytest.approx(50.1)
    assert starts(found, 1)[0] == 60.0
    assert found.history.samples == 8


def test_a_quorum_goes_on_without_the_lost():
    found = finished(
        AveragingRule(), rows=[3, 3, 3, 3], run={"quorum": 0.75}, outages=[Outage(1, at=0.5)]
    )
    assert found.version == 3
    assert found.history.samples == 9


def test_a_worker_without_rows_holds_nobody_up():
    found = finished(AveragingRule(), rows=[2, 0])
    assert folds(found) == [1.0, 2.0]


def test_what_is_handed_over_takes_its_time():
    """The last step is made at 1 s; 8 bytes of weights and 16 of the velocity, at 8 bytes/s."""
    found = finished(MeanGradientRule(), rows=[1], bandwidth=8.0)
    # The center, the window, the commit, the step, what is handed over.
    assert found.now == 1.0 + 1.0 + 1.0 + 1.0 + 3.0


# -- rounds -------------------------------------------------------------------------------------


def test_a_round_waits_for_the_slowest():
    found = finished(AveragingRule(), speeds=[1.0, 0.5])
    assert folds(found, 0) == folds(found, 1) == [2.0, 4.0, 6.0, 8.0]
    assert [worker.computed for worker in found.workers] == [4.0, 8.0]


def test_a_round_is_complete_when_the_last_one_missing_has_finished():
    """Replies come one after the other, so one hears at 7.25 s that it has no rows left."""
    found = finished(AveragingRule(), rows=[3, 1, 1], batch_seconds=0.25, server_bandwidth=8.0)
    assert folds(found, 0)[:2] == [4.25, 7.25]


def test_with_a_quorum_the_slow_are_late_and_told_so():
    found = finished(
        AveragingRule(), rows=[4, 4, 4, 4], speeds=[1, 1, 1, 0.6], run={"quorum": 0.75}
    )
    assert folds(found, 0) == [1.0, 2.0, 3.0, 4.0]
    assert [(r.worker, r.version) for r in found.history.late] == [(3, 1), (3, 3)]
    assert History.from_lines(found.history.lines()).late == found.history.late
    assert found.samples == found.history.samples == 12


def test_the_center_takes_its_time_to_who_was_late():
    """Late at 5 s, when rounds have closed at 2 and 4 s; 8 bytes come at 16 bytes/s."""
    found = finished(
        AveragingRule(), rows=[6, 2], speeds=[1, 0.25], bandwidth=16.0, run={"quorum": 0.5}
    )
    (late, *_) = found.history.late
    assert (late.worker, late.at, late.staleness) == (1, 5.0, 2)
    assert found.workers[1].started == 5.5


# -- whatever is lost -------------------------------------------------------------------------

OUTAGES = st.builds(
    Outage,
    st.integers(0, 2),
    st.floats(0.0, 12.0),
    st.one_of(st.floats(0.0, 60.0), st.just(float("inf"))),
)


@settings(max_examples=25, deadline=None)
@given(st.lists(OUTAGES, max_size=5), st.sampled_from([0.0, 5.0, 90.0]), st.booleans())
def test_every_run_ends_whole_or_says_who_is_missing(outages, late, together):
    rule = AveragingRule() if together else DownpourRule()
    limits = {"start_timeout": 40.0, "round_timeout": 20.0}
    found = build(rule, rows=[4, 4, 4], run=limits, outages=outages, late={1: late})
    try:
        found.run()
    except (StartTimeoutError, WorkerFailedError):
        # Who is there may go on: an end needs somebody who never came, or never came back.
        assert late > 40.0 or any(outage.seconds > 35.0 for outage in outages)
    else:
        assert found.history.samples == found.samples == 12


# -- what is recorded ---------------------------------------------------------------------------


def test_without_rounds_a_fast_workers_pass_is_ahead_of_the_runs_epoch():
    """As a run looks that a callback has stopped."""
    found = build(rows=(4, 4), run={"epochs": 8}, speeds=(5, 1))
    while len(found.history.epoch_records) < 2:
        found.advance()
    assert [len(values) for values in found.history.history.values()] == [2]
    windows = found.history.to_pandas()
    assert windows.groupby("worker")["epoch"].max().to_dict() == {0: 4, 1: 1}
    (legend,) = plots.timeline(found.history).legends
    assert [text.get_text() for text in legend.get_texts()] == [f"pass {n}" for n in range(1, 5)]


def test_the_history_says_that_its_time_is_simulated():
    found = finished(run={"epochs": 2})
    assert found.history.params["time"] == "simulated"
    assert found.history.params["cluster"]["batch_seconds"] == 1.0
    spec = RunSpec.from_json(found.history.params["spec"])
    assert rule_of(spec.rule) == DownpourRule()
    assert (spec.rows, spec.workers, spec.epochs) == (8, 2, 2)
    assert found.history.training_seconds() == 8.0
    assert [record.at for record in found.history.epoch_records] == [4.0, 8.0]


@pytest.mark.parametrize("rule", [DownpourRule(), MeanGradientRule()])
def test_the_center_is_evaluated_at_the_end_of_each_epoch(rule):
    seen = []

    def evaluate(center):
        seen.append(center.tolist())
        return {"val_loss": float(center[0])}

    found = build(rule, rows=[2], run={"epochs": 2}, evaluate=evaluate, latency=0.25)
    found.run()
    assert seen == [[1 + 7 / 4, 1 + 3 / 4], [1 + 7 / 16, 1 + 3 / 16]]
    assert found.history.history["val_loss"] == [2.75, 1.4375]


# -- what goes wrong ----------------------------------------------------------------------------


def test_weights_that_are_no_longer_finite_end_the_run():
    with (
        np.errstate(invalid="ignore"),
        pytest.raises(NonFiniteLossError, match="the weights contain NaN or infinity"),
    ):
        finished(rate=np.inf)


def test_a_loss_that_is_not_finite_ends_the_run():
    found = build()
    found.workers[1].rows.features[0][2] = np.nan
    with pytest.raises(NonFiniteLossError, match="nan in epoch 1, window 2 of worker 1"):
        found.run()
