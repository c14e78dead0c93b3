import numpy as np
import pytest

from distkeras_grid.array_tree import pack, unpack
from distkeras_grid.errors import DataError
from distkeras_grid.parameter_server.checkpoint_state import SavedReplay, SavedStep, repartition
from distkeras_grid.parameter_server.server_core import ServerCore
from distkeras_grid.rules import build_rule
from tests.invariants.small_runs import SIZE
from tests.invariants.test_checkpoint import Run


def test_a_replay_that_lacks_a_step_does_not_reach_the_center():
    """A run that went on from it refused each worker's first step."""
    step = SavedStep(np.zeros(2, np.float32), 0.1)
    replay = SavedReplay(4, None, {"5": step, "6": step})
    assert not replay.reaches(7)
    whole = SavedReplay(5, None, {"5": step, "6": step})
    assert [whole.reaches(version) for version in (5, 7, 8)] == [True, True, False]


#: What may be wrong with a saved server.
DAMAGES = {
    "a negative version": lambda tree: tree["ledger"].update(version=-1),
    "no word of a stop": lambda tree: tree["ledger"].pop("stop"),
    "states of no worker": lambda tree: tree.update(worker_states={}),
    "steps": lambda tree: tree.update(
        replay={"version": 0, "state": np.ones(3, np.uint8), "steps": {}}
    ),
    "no centers": lambda tree: tree["center"].update(centers=[]),
    "no workers": lambda tree: tree["center"].update(own=[]),
    "more than the rule has": lambda tree: tree["center"].update(shared=[np.ones(SIZE, "f")]),
    "another type": lambda tree: tree["center"].update(
        centers=[each.astype(np.int8) for each in tree["center"]["centers"]]
    ),
    "another size": lambda tree: tree["center"].update(
        centers=[each[1:] for each in tree["center"]["centers"]]
    ),
    "not finite": lambda tree: tree["center"]["centers"][0].fill(np.nan),
    "not finite of a worker": lambda tree: tree["center"]["own"][0][0].fill(np.inf),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_state_that_is_not_of_the_run_is_refused(damage):
    run = Run(build_rule("energy_matching", {}), 2, 0)
    run.go(20)
    (server, *states), _ = run.checkpoint()
    tree = unpack(server)
    ServerCore.resumed(run.spec, [pack(tree), *states])
    DAMAGES[damage](tree)
    with pytest.raises(DataError):
        ServerCore.resumed(run.spec, [pack(tree), *states])
    if damage == "no workers":
        with pytest.raises(DataError):
            repartition(pack(tree), 3)
