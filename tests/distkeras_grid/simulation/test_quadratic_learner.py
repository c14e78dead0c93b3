import numpy as np
import pytest

from distkeras_grid.rows import RowBlock
from distkeras_grid.rules import LocalSteps
from tests.quadratic_learner import QuadraticLearner

CURVATURE = np.array([1.0, 0.5])
START = np.array([4.0, -2.0])
TARGETS = np.array([[8.0, 8.0], [0.0, 4.0], [-8.0, 0.0]])


def learner(kind=LocalSteps.OPTIMIZER, momentum=0.0, dtype=np.float64):
    return QuadraticLearner(START.astype(dtype), CURVATURE, 0.5, momentum, kind)


def train(which, before=START, targets=TARGETS, batch=1, weight=None):
    """One window; returns what `after` holds."""
    after = np.empty_like(which.weights())
    rows = targets.reshape(-1, batch, targets.shape[1])
    weights = None if weight is None else np.reshape(weight, (-1, batch)).astype(np.float32)
    block = RowBlock((rows,), (np.zeros(rows.shape[:2]),), weights)
    before = before.astype(after.dtype)
    result = which.run(before, [block], after)
    return after, result


def test_momentum_is_that_of_keras():
    found, _ = train(learner(momentum=0.5))
    x, velocity = START, 0.0
    for target in TARGETS:
        velocity = 0.5 * velocity - 0.5 * CURVATURE * (x - target)
        x = x + velocity
    assert (found == x).all()


def test_the_look_ahead_takes_the_gradient_where_momentum_leads():
    which = learner(LocalSteps.LOOK_AHEAD, momentum=0.5)
    found, _ = train(which)
    x, velocity = START, 0.0
    for target in TARGETS:
        velocity = 0.5 * velocity - 0.5 * CURVATURE * (x + 0.5 * velocity - target)
        x = x + velocity
    assert (found == x).all()
    assert (which.state()["velocity"] == velocity).all()


def test_gradients_are_summed_along_plain_sgd():
    found, _ = train(learner(LocalSteps.GRADIENT))
    plain, _ = train(learner())
    np.testing.assert_allclose(found, (START - plain) / 0.5)


def test_a_batch_goes_by_the_mean_of_its_rows_and_their_weights():
    rows = np.array([[8.0, 8.0], [0.0, 4.0]])
    mean, result = train(learner(), targets=rows, batch=2)
    assert (mean == train(learner(), targets=rows.mean(axis=0, keepdims=True))[0]).all()
    assert (result.steps, result.samples) == (1, 2)
    weighted, _ = train(learner(), targets=rows, batch=2, weight=[3.0, 1.0])
    expected = START - 0.5 * CURVATURE * (START - np.array([6.0, 7.0]))
    assert (weighted == expected).all()


def test_the_loss_is_the_mean_over_the_rows():
    rows = np.array([[8.0, 8.0], [0.0, 4.0]])
    _, result = train(learner(), targets=rows, batch=2)
    losses = [(CURVATURE * (START - row) ** 2).sum() / 2 for row in rows]
    assert result.loss == pytest.approx(np.mean(losses))


def test_it_computes_in_the_type_of_its_start():
    found, _ = train(learner(momentum=0.5, dtype=np.float32))
    assert found.dtype == np.float32
    assert learner(dtype=np.float32).weights().dtype == np.float32
