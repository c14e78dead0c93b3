"""The order of a worker's work, told by events: no engine, no server, no clock."""

from __future__ import annotations

import numpy as np
import pytest

from distkeras_grid.errors import (
    DataError,
    GridError,
    NonFiniteLossError,
    RefusedError,
    ValidateError,
)
from distkeras_grid.feeding.batches import EpochSampler
from distkeras_grid.parameter_server.messages import CommitReply, GoOn, Start, Step
from distkeras_grid.records import WindowResult
from distkeras_grid.rules import (
    Accumulator,
    AveragingRule,
    DeepGradientCompression,
    DownpourRule,
    ElasticRule,
    MeanGradientRule,
    SequentialRule,
)
from distkeras_grid.weights import Variable, WeightLayout
from distkeras_grid.worker import worker_core as cores
from distkeras_grid.worker.worker_core import WorkerCore
from distkeras_grid.worker.worker_state import WorkerState

ROWS, BATCH, WINDOW, EPOCHS = 10, 2, 2, 2
# Windows of 2, 2 and 1 batches an epoch.
PER_EPOCH = 3
LAYOUT = WeightLayout((Variable("x", (3,)),), (Variable("mean", (1,)),))
CENTER = np.array([1, 2, 3, 4], np.float32)


def core(rule=None, **options):
    policy = EpochSampler(rows=ROWS, batch_size=BATCH, window=WINDOW, epochs=EPOCHS, seat=3)
    return WorkerCore(3, rule or DownpourRule(), LAYOUT, policy, **options)


def start(sequence=0, version=0, newest=None, has_state=False, rate=None, stop=False):
    newest = version if newest is None else newest
    return Start(sequence, version, newest, has_state, rate, stop)


def started(**said):
    return cores.StartAnswer(start(**said), CENTER)


def computed(loss=0.5, steps=2):
    return cores.WindowAnswer(WindowResult(steps, 4, loss, {"accuracy": 0.25}), 7.0, 0.5)


def replied(version, stop=False, rate=None, state_version=0, wanted=False):
    return CommitReply(version, stop, rate, state_version, wanted)


def kinds(actions):
    return [type(action).__name__ for action in actions]


def exchanged(worker, version, **said):
    """Let a window be computed and answered; return what comes then."""
    (exchange,) = worker.handle(computed())
    assert isinstance(exchange, cores.Exchange)
    return worker.handle(replied(version, **said))


def test_a_worker_computes_and_exchanges_until_its_windows_end():
    worker = core()
    begin, compute = worker.handle(started(sequence=1))
    assert begin == cores.SetScheduleOffset(2)
    numbers = []
    while isinstance(compute, cores.Compute):
        numbers.append(compute.window.sequence)
        (compute,) = exchanged(worker, version=0)
    assert numbers == [1, 2, 3, 4, 5]
    assert (kinds([compute]), worker.phase) == (["FinishWorker"], "done")
    assert worker.samples == 4 * 5


def test_a_commit_tells_its_window_and_what_the_rule_proposes():
    worker = core()
    *_, compute = worker.handle(started(sequence=4, version=9))
    np.testing.assert_array_equal(compute.before, CENTER)
    compute.after[:] = [2, 2, 2, 7]
    (exchange,) = worker.handle(computed())
    commit = exchange.commit
    assert (commit.sequence, commit.version, commit.epoch, commit.window) == (4, 9, 2, 1)
    assert (commit.steps, commit.samples, commit.loss) == (2, 4, 0.5)
    assert (commit.started, commit.seconds) == (7.0, 0.5)
    assert commit.metrics == {"accuracy": 0.25}
    # The change of the weights, and the statistics as they are.
    np.testing.assert_array_equal(exchange.payload, [1, 0, -1, 7])
    exchange.reply[:] = [5, 6, 7, 8]
    (compute,) = worker.handle(replied(10))
    np.testing.assert_array_equal(compute.before, [5, 6, 7, 8])
    assert worker.version == 10


def test_a_function_of_the_users_sees_the_window_before_it_is_sent():
    seen = []

    def validate(loss, metrics, sent):
        seen.append((loss, metrics, sent.tolist()))
        return "too far"

    worker = core(validate=validate)
    *_, compute = worker.handle(started())
    compute.after[:] = [2, 2, 2, 7]
    (exchange,) = worker.handle(computed())
    assert seen == [(0.5, {"accuracy": 0.25}, [1, 0, -1, 7])]
    assert exchange.commit.reason == "too far"


def test_a_function_of_the_users_that_raises_ends_the_worker_before_anything_is_sent():
    worker = core(validate=lambda *_: 1 / 0)
    *_, compute = worker.handle(started())
    compute.after[:] = 0
    with pytest.raises(ValidateError, match="ZeroDivisionError"):
        worker.handle(computed())


def test_what_is_sent_lies_where_it_was_asked_for():
    memory = np.empty(LAYOUT.size, np.float32)
    worker = core(send_buffer=memory)
    *_, compute = worker.handle(started())
    compute.after[:] = [2, 2, 2, 7]
    (exchange,) = worker.handle(computed())
    assert exchange.payload is memory
    np.testing.assert_array_equal(memory, [1, 0, -1, 7])


def test_an_elastic_worker_goes_on_from_its_own_weights():
    worker = core(ElasticRule(0.5))
    *_, compute = worker.handle(started())
    compute.after[:] = [8, 8, 8, 8]
    (exchange,) = worker.handle(computed())
    exchange.reply[:] = [2, 2, 2, 2]
    (compute,) = worker.handle(replied(1))
    np.testing.assert_array_equal(compute.before[:3], [6, 6, 6])


def test_stop_ends_before_the_next_window():
    worker = core()
    worker.handle(started())
    assert kinds(exchanged(worker, 1, stop=True)) == ["FinishWorker"]
    assert kinds(core().handle(started(stop=True))) == ["SetScheduleOffset", "FinishWorker"]


def test_a_learning_rate_comes_before_the_window_that_it_is_for():
    worker = core()
    first = worker.handle(started(rate=0.25))
    assert (first[-2], first[-1].window.sequence) == (cores.SetLearningRate(0.25), 0)
    second = exchanged(worker, 1, rate=0.5)
    assert (second[0], second[-1].window.sequence) == (cores.SetLearningRate(0.5), 1)


@pytest.mark.parametrize("loss", [np.nan, np.inf, -np.inf])
def test_a_loss_that_is_not_finite_is_not_sent(loss):
    worker = core()
    worker.handle(started())
    with pytest.raises(NonFiniteLossError, match=r"epoch 1, window 0 of worker 3: lower"):
        worker.handle(computed(loss))


def skipped(version):
    return CommitReply(version, stop=False, learning_rate=0.25, skipped=True)


@pytest.mark.parametrize(
    "rule", [DownpourRule(), AveragingRule(), ElasticRule(0.5), SequentialRule()]
)
def test_after_a_skipped_window_a_worker_begins_anew_from_the_center(rule):
    worker = core(rule, sends_nonfinite=True)
    *_, compute = worker.handle(started())
    compute.after[:] = np.nan
    (exchange,) = worker.handle(computed(np.nan))
    exchange.reply[:] = [5, 6, 7, 8]
    renew, begin, rate, compute = worker.handle(skipped(4))
    assert (renew, begin, rate.value) == (cores.ResetEngine(), cores.SetScheduleOffset(2), 0.25)
    np.testing.assert_array_equal(compute.before, [5, 6, 7, 8])
    assert (worker.version, compute.window.sequence) == (4, 1)


def test_a_skipped_gradient_leaves_weights_and_optimizer_as_they_are():
    worker = core(MeanGradientRule(), sends_nonfinite=True)
    worker.handle(started())
    worker.handle(computed(np.inf))
    (compute,) = worker.handle(skipped(0))
    np.testing.assert_array_equal(compute.before, CENTER)


DGC = DeepGradientCompression(0.9, warm_up_epochs=0)


def sparse(rule=None, **options):
    """A core of a worker with 12 weights that sends two of them, after its first window."""
    layout = WeightLayout((Variable("x", (3, 4)),))
    planned = EpochSampler(rows=4, batch_size=1, window=1, shuffle=False)
    worker = WorkerCore(
        *(0, rule or DownpourRule(), layout, planned),
        accumulator=lambda: Accumulator(DGC, layout),
        **options,
    )
    *_, compute = worker.handle(cores.StartAnswer(start(), np.zeros(12, np.float32)))
    compute.after[:] = np.arange(12)
    return worker


def held_back(worker):
    """How many numbers a worker holds back."""
    return np.count_nonzero(cores.residual_of(worker._accumulator)["residual"])


@pytest.mark.parametrize(("loss", "value"), [(np.nan, 1.0), (0.5, np.nan)])
def test_nothing_of_a_skipped_window_is_held_back(loss, value):
    worker = sparse(sends_nonfinite=True)
    exchanged(worker, 1)
    worker.after[:] = value
    (exchange,) = worker.handle(computed(loss))
    assert np.isnan(exchange.payload).sum() == np.count_nonzero(exchange.payload) == 1
    exchange.reply[:] = 0
    worker.handle(skipped(1))
    assert held_back(worker) == 0


@pytest.mark.parametrize(("value", "error"), [(1.0, RefusedError), (np.nan, NonFiniteLossError)])
def test_a_refused_commit_is_an_error_of_training_where_it_is_not_finite(value, error):
    worker = core()
    *_, compute = worker.handle(started())
    compute.after[:] = value
    worker.handle(computed())
    with pytest.raises(error):
        worker.handle(cores.RejectionAnswer(RefusedError("no")))


def test_what_is_held_back_outlives_a_new_start_of_the_same_attempt():
    worker = sparse(MeanGradientRule())
    (exchange,) = worker.handle(computed())
    assert np.count_nonzero(exchange.payload) == 2
    worker.handle(replied(3))
    worker.handle(cores.RejectionAnswer(RefusedError("not kept")))
    assert held_back(worker) == 9
    worker.handle(cores.StartAnswer(start(sequence=1, version=3), np.zeros(12, np.float32)))
    assert held_back(worker) == 9


# -- the steps of the rounds --------------------------------------------------------------------


def test_a_worker_makes_all_steps_that_it_has_not_made():
    worker = core(MeanGradientRule())
    *_, compute = worker.handle(started())
    worker.handle(computed())
    (fetch,) = worker.handle(replied(2, rate=0.125))
    # The rate comes with the step that it is for.
    assert (kinds([fetch]), fetch.version) == (["RequestStep"], 0)
    assert fetch.out is compute.after
    order, apply, fetch = worker.handle(Step(0.125))
    assert order == cores.SetLearningRate(0.125)
    assert (apply.gradient is compute.after, apply.weights is compute.before) == (True, True)
    assert fetch.version == 1
    apply, compute = worker.handle(Step(None))
    assert kinds([apply, compute]) == ["Apply", "Compute"]
    assert worker.version == 2


def test_a_late_worker_takes_a_state_over_and_makes_the_steps_since():
    worker = core(MeanGradientRule())
    (fetch,) = worker.handle(started(sequence=2, version=4, newest=5, has_state=True))
    assert fetch == cores.RequestState()
    state = np.array([1, 2], np.uint8)
    order, fetch = worker.handle(cores.StateAnswer(state))
    assert (kinds([order]), order.state is state) == (["LoadOptimizerState"], True)
    assert (kinds([fetch]), fetch.version) == (["RequestStep"], 4)
    *_, compute = worker.handle(Step(None))
    assert compute.window.sequence == 2


def test_a_state_that_is_refused_ends_the_attempt():
    worker = core(MeanGradientRule())
    worker.handle(started(version=4, has_state=True))
    # Nothing was computed yet, and nothing says what lies in the memory for it.
    worker.payload[:] = np.nan
    with pytest.raises(RefusedError):
        worker.handle(cores.RejectionAnswer(RefusedError("none was promised")))


def test_a_worker_whose_step_is_not_kept_begins_again_beyond_it():
    worker = core(MeanGradientRule())
    worker.handle(started())
    exchanged(worker, 3)
    refusal = cores.RejectionAnswer(RefusedError("not kept"))
    assert kinds(worker.handle(refusal)) == ["Reconnect"]
    again = started(sequence=1, version=2, newest=3, has_state=True)
    assert kinds(worker.handle(again)) == ["RequestState"]
    *_, fetch = worker.handle(cores.StateAnswer(np.empty(0, np.uint8)))
    assert fetch.version == 2
    # It has got on, so it may begin again.
    assert kinds(worker.handle(refusal)) == ["Reconnect"]
    with pytest.raises(RefusedError):
        worker.handle(again)


def test_a_worker_that_begins_again_is_asked_anew_and_may_begin_again_once_more():
    """Where the optimizer has no state, the weights alone are a new start."""
    worker = core(MeanGradientRule())
    worker.handle(started())
    exchanged(worker, 3, wanted=True)
    refusal = cores.RejectionAnswer(RefusedError("not kept"))
    assert kinds(worker.handle(refusal)) == ["Reconnect"]
    assert kinds(worker.handle(started(sequence=1, version=2, newest=3))) == ["RequestStep"]
    assert kinds(worker.handle(refusal)) == ["Reconnect"]
    # Asked for its state before it began again, it has no more to tell than the server.
    assert kinds(worker.handle(started(sequence=1, version=3, newest=3))) == ["Compute"]


def test_a_worker_hands_over_what_it_is_asked_for_and_what_nobody_has_at_the_end():
    worker = core(MeanGradientRule())
    worker.handle(started())
    exchanged(worker, 1, wanted=True)
    apply, hand_over = worker.handle(Step(None))
    assert (kinds([apply]), hand_over.version) == (["Apply"], 1)
    assert kinds(worker.handle(cores.HandedOver())) == ["Compute"]
    exchanged(worker, 2, stop=True)
    *_, hand_over = worker.handle(Step(None))
    assert (kinds([hand_over]), hand_over.version) == (["StoreOptimizerState"], 2)
    assert kinds(worker.handle(cores.HandedOver())) == ["FinishWorker"]


def test_nothing_is_handed_over_at_the_end_that_the_server_has():
    worker = core(MeanGradientRule())
    worker.handle(started())
    exchanged(worker, 1, stop=True, state_version=1)
    assert kinds(worker.handle(Step(None))) == ["Apply", "FinishWorker"]


def test_weights_that_are_not_finite_are_not_handed_over():
    worker = core(MeanGradientRule())
    worker.handle(started())
    exchanged(worker, 1, wanted=True)
    worker.before[1] = np.nan
    with pytest.raises(NonFiniteLossError):
        worker.handle(Step(None))


# -- misused -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "event",
    [computed(), replied(1), Step(None), cores.HandedOver()],
    ids=lambda event: type(event).__name__,
)
def test_what_nobody_asked_for_is_an_error(event):
    with pytest.raises(GridError):
        core().handle(event)
    done = core()
    done.handle(started(stop=True))
    with pytest.raises(GridError):
        done.handle(event)


def own_state(before=(5, 6, 7, 8), offset=0, residuals=None):
    vector = np.array(before, np.float32)
    return WorkerState(vector, offset, residuals, {"0": np.array(3)})


def recalled(sequence, version, **own):
    return cores.RestoreAnswer(sequence, version, own_state(**own))


def test_a_worker_keeps_its_state_before_the_next_window():
    worker = core()
    worker.handle(started())
    worker.handle(computed())
    (keep,) = worker.handle(CommitReply(4, False, None, keep=True))
    assert (keep.sequence, keep.version, keep.residuals) == (1, 4, None)
    assert np.shares_memory(keep.before, worker.before)
    rate, compute = worker.handle(GoOn(stop=False, learning_rate=0.5))
    assert (rate, compute.window.sequence) == (cores.SetLearningRate(0.5), 1)
    (compute,) = exchanged(worker, 5)
    assert compute.window.sequence == 2


def test_a_worker_that_has_kept_its_state_may_be_told_to_stop():
    worker = core()
    worker.handle(started())
    worker.handle(computed())
    worker.handle(CommitReply(4, False, None, keep=True))
    assert kinds(worker.handle(GoOn(stop=True, learning_rate=None))) == ["FinishWorker"]


def test_a_worker_without_windows_keeps_nothing():
    worker = core()
    worker.handle(started(sequence=2 * PER_EPOCH - 1))
    worker.handle(computed())
    assert kinds(worker.handle(CommitReply(1, False, None, keep=True))) == ["FinishWorker"]


def beginning(rule, start, event, **options):
    """Let another attempt start; return its core, and what it does with what it recalls."""
    worker = core(rule, **options)
    assert kinds(worker.handle(cores.StartAnswer(start, CENTER))) == ["RestoreWorkerState"]
    return worker, worker.handle(event)


def kept_start(sequence, version, newest=None, has_state=False, rates=()):
    newest = version if newest is None else newest
    return Start(
        sequence, version, newest, has_state, 0.25, False, has_worker_state=True, rates=rates
    )


@pytest.mark.parametrize("rule", [DownpourRule(), ElasticRule(0.5), MeanGradientRule()])
def test_a_state_of_now_is_taken_with_its_weights_whatever_the_rule(rule):
    start = kept_start(4, 9) if rule.name != "mean_gradient" else kept_start(4, 2, 9, True)
    worker, orders = beginning(rule, start, recalled(4, 9, offset=3))
    assert kinds(orders) == ["Restore", "SetLearningRate", "Compute"]
    assert orders[0].shared
    np.testing.assert_array_equal(orders[-1].before, [5, 6, 7, 8])
    assert (orders[-1].window.sequence, worker.version, worker.offset) == (4, 9, 3)


def test_after_an_older_state_the_center_counts_and_schedules_go_on():
    worker, orders = beginning(DownpourRule(), kept_start(4, 9), recalled(2, 5, offset=1))
    # Windows of 2, 2, 1, 2 batches: after the kept ones come 3 more.
    assert orders[1:3] == [cores.SetScheduleOffset(1 + 3), cores.SetLearningRate(0.25)]
    np.testing.assert_array_equal(orders[-1].before, CENTER)
    assert (orders[-1].window.sequence, worker.version) == (4, 9)


def test_an_elastic_worker_takes_its_older_weights():
    worker, orders = beginning(ElasticRule(0.5), kept_start(4, 9), recalled(2, 5))
    np.testing.assert_array_equal(orders[-1].before, [5, 6, 7, 8])
    assert (orders[-1].window.sequence, worker.version) == (4, 9)


def test_a_worker_alone_repeats_what_it_has_lost_and_sends_only_what_is_due():
    worker, orders = beginning(SequentialRule(), kept_start(4, 4), recalled(2, 2))
    assert kinds(orders) == ["Restore", "SetLearningRate", "Compute"]
    sequences = []
    compute = orders[-1]
    np.testing.assert_array_equal(compute.before, [5, 6, 7, 8])
    while isinstance(compute, cores.Compute):
        sequences.append(compute.window.sequence)
        compute.after[:] = sequences[-1]
        (compute,) = worker.handle(computed())
        if isinstance(compute, cores.Compute):
            np.testing.assert_array_equal(compute.before, np.full(4, sequences[-1]))
    assert (sequences, compute.commit.sequence, worker.samples) == ([2, 3, 4], 4, 4)


def test_windows_are_trained_again_with_the_rates_of_their_epochs():
    start = kept_start(5, 5, rates=((1, 0.5), (2, 0.25)))
    worker, (*orders, compute) = beginning(SequentialRule(), start, recalled(1, 1))
    rates = [[order.value for order in orders if isinstance(order, cores.SetLearningRate)][-1]]
    while isinstance(compute, cores.Compute):
        *orders, compute = worker.handle(computed())
        rates += [order.value for order in orders]
    assert (compute.commit.sequence, rates) == (5, [0.5, 0.5, 0.25, 0.25, 0.25])
    *orders, _ = worker.handle(replied(6, rate=0.125))
    assert orders == [cores.SetLearningRate(0.125)]


def test_where_workers_make_the_steps_an_older_state_gives_only_what_is_the_workers_own():
    worker, orders = beginning(MeanGradientRule(), kept_start(4, 6, 9, True), recalled(3, 7))
    assert kinds(orders) == ["Restore", "SetLearningRate", "RequestState"]
    assert not orders[0].shared
    np.testing.assert_array_equal(worker.before, CENTER)


@pytest.mark.parametrize(("sequence", "version", "kept"), [(4, 9, 1), (4, 5, 1), (3, 9, 0)])
def test_what_was_held_back_comes_again_only_if_nothing_was_sent_since(sequence, version, kept):
    """Whatever other workers have sent; an older one would count twice what has been sent since."""

    def dgc():
        return Accumulator(DGC, LAYOUT)

    held = {name: np.ones_like(array) for name, array in cores.residual_of(dgc()).items()}
    event = recalled(sequence, version, residuals=held)
    worker, _ = beginning(DownpourRule(), kept_start(4, 9), event, accumulator=dgc)
    for array in cores.residual_of(worker._accumulator).values():
        np.testing.assert_array_equal(array, np.full_like(array, kept))


def test_a_state_of_another_model_is_refused():
    with pytest.raises(DataError):
        beginning(DownpourRule(), kept_start(4, 9), recalled(4, 9, before=(1, 2)))
    held = {"residual": np.zeros(3, np.float32)}
    with pytest.raises(DataError):
        beginning(DownpourRule(), kept_start(4, 9), recalled(4, 9, residuals=held))


@pytest.mark.parametrize(("sequence", "stop"), [(4, True), (2 * PER_EPOCH, False)])
def test_a_worker_that_has_nothing_left_to_do_recalls_nothing(sequence, stop):
    told = Start(sequence, 9, 9, False, None, stop, has_worker_state=True)
    assert kinds(core().handle(cores.StartAnswer(told, CENTER))) == [
        "SetScheduleOffset",
        "FinishWorker",
    ]
