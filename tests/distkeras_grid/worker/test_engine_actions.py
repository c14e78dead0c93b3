"""What is handed over of an engine's state, and taken over by another one."""

from __future__ import annotations

import numpy as np
import pytest

from distkeras_grid.errors import ConfigurationError, GridError, NonFiniteLossError
from distkeras_grid.rules import LocalSteps
from distkeras_grid.worker import worker_core as cores
from distkeras_grid.worker.engine_actions import apply_action, shared_state
from distkeras_grid.worker.task import check_state
from tests.quadratic_learner import QuadraticLearner
from tests.specs import make_spec

START = np.array([4.0, 2.0], np.float32)


def engine(size=2):
    start = np.resize(START, size)
    return QuadraticLearner(start, 1.0, 0.5, momentum=0.5, local_steps=LocalSteps.NONE)


def test_a_state_that_is_handed_over_is_taken_over_bit_for_bit():
    one, other = engine(), engine()
    one.apply(np.array([1.0, 1e-30], np.float32), START.copy())
    state = shared_state(one, version=1)
    assert (state.dtype, state.nbytes) == (np.uint8, 8)
    apply_action(cores.LoadOptimizerState(state), other)
    np.testing.assert_array_equal(other.step_state()[0], one.step_state()[0])
    assert (other.step_state()[0] != 0).all()


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_state_that_is_not_finite_is_not_handed_over(value):
    own = engine()
    own.load_step_state([np.array([1.0, value], np.float32)])
    with pytest.raises(NonFiniteLossError):
        shared_state(own, version=3)


def test_a_question_is_no_order():
    with pytest.raises(GridError):
        apply_action(cores.RequestState(), engine())


def test_an_optimizer_that_is_laid_out_otherwise_is_refused_before_the_start():
    spec = make_spec("mean_gradient", state=engine().step_section.variables)
    check_state(engine(), spec)
    for wrong in (make_spec("mean_gradient"), spec):
        with pytest.raises(ConfigurationError):
            check_state(engine(3), wrong)
