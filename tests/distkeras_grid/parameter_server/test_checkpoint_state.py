from distkeras_grid.parameter_server.checkpoint_state import CheckpointBarrier


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
