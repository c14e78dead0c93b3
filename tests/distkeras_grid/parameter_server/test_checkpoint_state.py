import numpy as np

from distkeras_grid.parameter_server.checkpoint_state import SavedReplay, SavedStep


def test_a_replay_that_lacks_a_step_does_not_reach_the_center():
    """A run that went on from it refused each worker's first step."""
    step = SavedStep(np.zeros(2, np.float32), 0.1)
    replay = SavedReplay(4, None, {"5": step, "6": step})
    assert not replay.reaches(7)
    whole = SavedReplay(5, None, {"5": step, "6": step})
    assert [whole.reaches(version) for version in (5, 7, 8)] == [True, True, False]
