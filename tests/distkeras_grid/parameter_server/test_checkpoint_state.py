import numpy as np

from distkeras_grid.parameter_server.checkpoint_state import (
    CheckpointBarrier,
    SavedReplay,
    SavedStep,
)


def test_a_checkpoint_is_complete_with_the_last_answer():
    gathering = CheckpointBarrier()
    assert (gathering.number, gathering.complete) == (0, False)
    gathering.begin([0, 2])
    assert [gathering.asks(seat) for seat in (0, 1, 2)] == [True, False, True]
    gathering.answered(2)
    assert not gathering.complete
    gathering.answered(0)
    assert gathering.complete
    gathering.take()
    assert (gathering.number, gathering.complete) == (1, False)


def test_an_answer_to_an_earlier_question_does_not_count():
    gathering = CheckpointBarrier()
    gathering.begin([0])
    gathering.answered(0)
    assert not gathering.complete
    gathering.asks(0)
    gathering.begin([0])
    gathering.answered(0)
    assert not gathering.complete


def test_nobody_waits_for_a_seat_that_is_lost():
    gathering = CheckpointBarrier()
    gathering.begin([0])
    gathering.lost(0)
    assert gathering.complete
    gathering.begin([])
    assert gathering.complete


def test_a_replay_that_lacks_a_step_does_not_reach_the_center():
    """A run that went on from it refused each worker's first step."""
    step = SavedStep(np.zeros(2, np.float32), 0.1)
    replay = SavedReplay(4, None, {"5": step, "6": step})
    assert not replay.reaches(7)
    whole = SavedReplay(5, None, {"5": step, "6": step})
    assert [whole.reaches(version) for version in (5, 7, 8)] == [True, True, False]
