"""What may die in the middle of a run, died, on real executors (make test-faults).

Each run is a driver of its own on a standalone cluster; the driver kills when an epoch ends, and
writes what came out.
"""

from __future__ import annotations

import json
import platform
import signal

import pytest

from tests.faults.counting import attempts, end, lives, start_driver, wait_until, worker_pid
from tests.processes import processes

pytestmark = [pytest.mark.full, pytest.mark.faults, pytest.mark.cluster, pytest.mark.tensorflow]

ROWS, EPOCHS = 600, 40


def start(cluster, project, folder, **settings):
    settings = {"rows": ROWS, "epochs": EPOCHS, **settings}
    return start_driver(project, "train_job", cluster.url, folder, settings)


def run(cluster, project, folder, **settings):
    end(start(cluster, project, folder, **settings))
    return result_in(folder)


def result_in(folder):
    found = json.loads((folder / "result.json").read_text())
    result = found["disturbed"]
    # Whatever happened, no job goes on and the session can be used.
    assert result["active_jobs"] == []
    assert result["rows_of_another_job"] == 100
    if "undisturbed" in found:
        result["expected"] = found["undisturbed"]["weights"]
    return result


def attempts_of(result, seat, kind="seats"):
    """Attempts on a seat in order: those whose windows were folded, or all that have "joined"."""
    return list(dict.fromkeys(attempt for worker, attempt in result[kind] if worker == seat))


def check(result, counts, epochs=EPOCHS, kind="seats"):
    """Every row has counted once an epoch, and each seat has had so many attempts."""
    assert result["error"] is None
    assert result["samples"] == ROWS * epochs
    assert result["weights"] == result.get("expected", [epochs] * ROWS)
    assert [len(attempts_of(result, seat, kind)) for seat in range(len(counts))] == counts


@pytest.mark.parametrize("fault", ["worker", "executor"])
@pytest.mark.promise(
    "worker or executor: killed, on a cluster",
    "Its next attempt goes on; exact.",
)
def test_one_seat_is_taken_again_and_every_sample_counts_once(cluster, project, tmp_path, fault):
    result = run(cluster, project, tmp_path, fault=fault)
    check(result, [2, 1] if fault == "worker" else [2])
    first, second = attempts_of(result, 0)
    assert first < second


@pytest.mark.parametrize("seats", [[1] * 5, [0, 1, 0, 1, 0]], ids=["one seat", "both seats"])
@pytest.mark.promise(
    "executors: five killed, one after another",
    "Exact; other workers have no second attempt.",
)
def test_five_executors_die_one_after_another(cluster, project, tmp_path, seats):
    """Only the seats whose executors died have further attempts, and they have the same rows."""
    result = run(cluster, project, tmp_path, fault=seats, epochs=200)
    check(result, [1 + seats.count(seat) for seat in (0, 1)], epochs=200)
    unharmed = [seat for seat in (0, 1) if seat not in seats]
    assert all(len(attempts_of(result, seat, "joined")) == 1 for seat in unharmed)


@pytest.mark.promise(
    "executors: five killed, with rows of a shuffle",
    "The rows are written once: beside the checkpoints, or in a temporary folder; exact.",
)
@pytest.mark.parametrize("saved", [True, False])
def test_rows_in_another_order_each_time_are_those_of_the_first_time(
    cluster, project, tmp_path, saved
):
    """They are written where an executor's death does not take them."""
    seats = [0, 1, 0, 1, 0] if saved else [1] * 5
    settings = {"fault": seats, "shuffled": True, "saved": saved, "epochs": 200}
    result = run(cluster, project, tmp_path, **settings)
    check(result, [1 + seats.count(seat) for seat in (0, 1)], epochs=200)


@pytest.mark.promise(
    "workers: all killed at once",
    "Their next attempts go on; exact.",
)
def test_all_workers_at_once(cluster, project, tmp_path):
    check(run(cluster, project, tmp_path, fault="workers"), [2, 2])


@pytest.mark.parametrize("fault", ["worker", "executor"])
@pytest.mark.promise(
    "worker: killed, in rounds",
    "The others wait; the weights are those of an undisturbed run, bit for bit with plain SGD.",
)
def test_a_synchronous_run_ends_with_the_weights_of_an_undisturbed_one(
    cluster, project, tmp_path, fault
):
    """Plain SGD has no state of its own, so the second attempt repeats the lost windows."""
    result = run(cluster, project, tmp_path, fault=fault, trainer="AveragingTrainer")
    assert "expected" in result
    check(result, [2])


@pytest.mark.parametrize("trainer", ["AveragingTrainer", "DOWNPOUR"])
@pytest.mark.promise(
    "worker: stopped, so that it is silent",
    "It is started again after `round_timeout`; exact.",
)
def test_a_worker_that_hangs_is_started_again_and_every_sample_counts_once(
    cluster, project, tmp_path, trainer
):
    settings = {"fault": "stopped worker", "arguments": {"round_timeout": 5.0}}
    check(run(cluster, project, tmp_path, trainer=trainer, **settings), [2])


@pytest.mark.parametrize(
    ("number", "frames"),
    [
        (
            signal.SIGKILL,
            [
                ("WorkerHello", 0, 1, 0.5),
                ("Ready", 1, 1, 0.5),
                ("WindowCommit", 0, 3, 0.5),
                ("CommitReply", 1, 5, 0.5),
                ("WorkerEnd", 0, 1, 0.0),
            ],
        ),
        (signal.SIGSTOP, [("WindowCommit", 0, 3, 0.5), ("CommitReply", 1, 5, 0.5)]),
    ],
    ids=["killed", "stopped"],
)
@pytest.mark.promise(
    "worker: killed or stopped while its frame passes, on a cluster",
    "Its next attempt goes on; exact.",
)
def test_workers_are_struck_in_the_middle_of_their_frames(
    cluster, project, tmp_path, number, frames
):
    """In the greeting, at the gate, in a commit, in its reply, and when a worker has finished.

    Half of the frame arrives, and no more of it.
    """
    arguments = {"round_timeout": 5.0} if number == signal.SIGSTOP else {}
    strikes = [(*each, number) for each in frames]
    result = run(cluster, project, tmp_path, frames=strikes, arguments=arguments)
    assert sorted(result["struck"]) == sorted(kind for kind, *_ in frames)
    # In the greeting a worker has no seat yet, so that attempt has not joined.
    struck = [seat for kind, seat, *_ in frames if kind != "WorkerHello"]
    check(result, [1 + struck.count(seat) for seat in (0, 1)], kind="joined")


@pytest.mark.promise(
    "worker: killed whenever it starts",
    "It is given up after four failures, and trainers without rounds go on; at last one error "
    "names it, its host, last sign of life and log.",
)
def test_a_worker_that_dies_each_time_is_one_clear_error(cluster, project, tmp_path):
    result = run(cluster, project, tmp_path, fault="each worker", epochs=10)
    assert result["error"] == "ClusterError"
    assert f"worker 0 on {platform.node()}" in result["words"]
    assert "stderr" in result["words"]
    assert len(attempts(tmp_path / "disturbed", 0)) == 4
    # The other one has trained all of its rows meanwhile.
    assert {worker for worker, _ in result["seats"]} == {1}
    assert result["samples"] == ROWS // 2 * 10


def wait_until_gone(folder, seconds):
    workers = [worker_pid(folder / "disturbed", seat) for seat in (0, 1)]
    wait_until(lambda: not any(map(lives, workers)), seconds)


@pytest.mark.promise(
    "driver: interrupted",
    "The tasks end within seconds; the Spark session can be used again.",
)
def test_an_interrupt_ends_the_executors_work(cluster, project, tmp_path):
    result = run(cluster, project, tmp_path, fault="interrupt", epochs=10_000)
    assert result["error"] == "KeyboardInterrupt"
    assert result["seconds_after"] < 10
    wait_until_gone(tmp_path, 8)


@pytest.mark.promise(
    "driver: killed, without checkpoints",
    "Workers and server end by themselves.",
)
def test_a_dead_driver_leaves_nothing_behind(cluster, project, tmp_path):
    end(start(cluster, project, tmp_path, fault="driver", epochs=10_000), code=-signal.SIGKILL)
    wait_until_gone(tmp_path, 15)
    assert not [
        command
        for _, parent, command in processes()
        if parent == 1 and "-m distkeras_grid.parameter_server" in command
    ]
