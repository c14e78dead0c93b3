"""What dies or fails in the middle of a run, on two local slots; test_matrix.py has more."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from distkeras_grid.errors import ServerUnreachableError, WorkerFailedError
from tests.faults.counting import (
    EPOCHS,
    ROWS,
    at_epoch,
    attempts,
    counting_data,
    counting_trainer,
    failing,
    kill,
    server_pid,
    worker_pid,
)

pytestmark = [pytest.mark.faults, pytest.mark.spark, pytest.mark.tensorflow]


@pytest.mark.promise(
    "worker: killed",
    "Its next attempt goes on; exact.",
)
def test_a_killed_worker_comes_back_and_no_sample_is_lost_or_counted_twice(spark, tmp_path):
    trainer = counting_trainer("DOWNPOUR", tmp_path)
    killer = at_epoch(3, lambda: kill(worker_pid(tmp_path, seat=0)))
    model = trainer.train(counting_data(spark), seed=1, callbacks=[killer])
    assert trainer.history.samples == ROWS * EPOCHS
    np.testing.assert_array_equal(model.get_weights()[0], np.full((ROWS, 1), EPOCHS))
    assert len(attempts(tmp_path, 0)) == 2
    assert len(attempts(tmp_path, 1)) == 1
    by_attempt = [r.attempt for r in trainer.history.records if r.worker == 0]
    assert len(set(by_attempt)) == 2
    assert by_attempt == sorted(by_attempt)


@pytest.mark.full
@pytest.mark.promise(
    "driver: busy for 10 s in a callback",
    "No window and no epoch is missing in the history.",
)
def test_a_busy_driver_misses_no_window_and_no_epoch(spark, tmp_path):
    import keras

    epochs = []

    def note_and_wait(epoch, _):
        epochs.append(epoch)
        # Meanwhile the workers finish: more events wait than the server sends at once.
        threading.Event().wait(10 if epoch == 1 else 0)

    busy = keras.callbacks.LambdaCallback(on_epoch_end=note_and_wait)
    trainer = counting_trainer("DOWNPOUR", tmp_path, communication_window=1, num_epoch=10)
    trainer.train(counting_data(spark), seed=1, callbacks=[busy])
    assert epochs == list(range(10))
    assert len(trainer.history.records) == 1500
    assert trainer.history.samples == ROWS * 10


@pytest.mark.promise(
    "server: killed, without checkpoints",
    "One `ServerUnreachableError` within seconds.",
)
def test_a_dead_server_is_one_error_at_once(spark, tmp_path):
    trainer = counting_trainer("DOWNPOUR", tmp_path, num_workers=1, num_epoch=10_000)
    killed = []

    def kill_server():
        killed.append(time.monotonic())
        kill(server_pid())

    with pytest.raises(ServerUnreachableError):
        trainer.train(counting_data(spark), seed=1, callbacks=[at_epoch(1, kill_server)])
    assert time.monotonic() - killed[0] < 8
    assert spark.range(10).count() == 10


@pytest.mark.promise(
    "user's code: raises an error on a worker",
    "One `WorkerFailedError` with the error, without further attempts.",
)
def test_an_error_of_the_users_own_code_is_told_at_once_and_not_tried_again(spark, tmp_path):
    trainer = counting_trainer("DOWNPOUR", tmp_path, loss=failing(tmp_path), num_workers=1)
    with pytest.raises(WorkerFailedError, match="ValueError: no such class: basalt"):
        trainer.train(counting_data(spark), seed=1)
    # Spark may have begun a second one before it heard that the run has ended.
    assert len(attempts(tmp_path, 0)) <= 2
