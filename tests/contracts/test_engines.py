"""What every engine promises, whatever computes: one suite, run for each.

An engine of another backend adds a class with a `make` of its own, and must pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from distkeras_grid.errors import ConfigurationError
from distkeras_grid.rows import RowBlock, aligned_empty
from distkeras_grid.rules import LocalSteps

STEPS, BATCH, WIDTH = 4, 8, 3


def block_of(seed=0, steps=STEPS, batch=BATCH):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(steps, batch, WIDTH)).astype(np.float32)
    return RowBlock((x,), ((x[..., 0] > 0).astype(np.int64),))


def trained(engine, before=None, blocks=None):
    start = aligned_empty(engine.layout.size, engine.weights().dtype)
    np.copyto(start, engine.weights() if before is None else before)
    kept, after = start.copy(), aligned_empty(engine.layout.size, start.dtype)
    result = engine.run(start, blocks or [block_of()], after)
    np.testing.assert_array_equal(start, kept)
    return result, after


class WindowContract:
    """What holds for an engine that trains windows of local steps, in one process or several."""

    #: Whether the same window cut into other blocks gives the same bits.
    tolerance = 0.0

    def make(self, kind=LocalSteps.OPTIMIZER, momentum=0.0, rate=0.1):
        """Return an engine; two of the same arguments are in the same state."""
        raise NotImplementedError

    def test_the_weights_are_a_copy(self):
        engine = self.make()
        weights = engine.weights()
        assert weights.shape == (engine.layout.size,)
        weights[:] = 7
        assert (engine.weights() != 7).any()

    def test_a_window_tells_steps_samples_and_loss_and_moves_the_weights(self):
        engine = self.make()
        result, after = trained(engine)
        assert (result.steps, result.samples) == (STEPS, STEPS * BATCH)
        assert np.isfinite(result.loss)
        assert np.isfinite(after).all()
        assert np.abs(after - self.make().weights()).max() > 0

    def test_engines_made_alike_train_alike(self):
        (one, first), (other, second) = trained(self.make()), trained(self.make())
        assert one == other
        np.testing.assert_array_equal(first, second)

    def test_a_window_may_come_in_several_blocks(self):
        whole = block_of()
        parts = [whole.part(slice(0, 3), slice(None)), whole.part(slice(3, 4), slice(None))]
        (one, first), (other, second) = (
            trained(self.make(), blocks=[whole]),
            trained(self.make(), blocks=parts),
        )
        assert (one.steps, one.samples) == (other.steps, other.samples)
        assert one.loss == pytest.approx(other.loss, rel=1e-6)
        np.testing.assert_allclose(first, second, rtol=0, atol=self.tolerance)

    def test_a_window_starts_from_the_weights_that_are_given(self):
        engine, start = self.make(), self.make().weights() + 1
        trained(engine)
        fresh = self.make()
        fresh.restore(engine.state())
        np.testing.assert_array_equal(trained(engine, start)[1], trained(fresh, start)[1])

    @pytest.mark.parametrize("momentum", [0.0, 0.5])
    def test_an_engine_goes_on_from_its_saved_state(self, momentum):
        engine = self.make(momentum=momentum)
        _, middle = trained(engine)
        state = {name: array.copy() for name, array in engine.state().items()}
        result, after = trained(engine, middle)
        engine.restore(state)
        again, repeated = trained(engine, middle)
        assert again == result
        np.testing.assert_array_equal(repeated, after)
        other = self.make(momentum=momentum)
        other.restore(state)
        np.testing.assert_array_equal(trained(other, middle)[1], after)

    def test_a_state_is_a_copy(self):
        engine = self.make(momentum=0.5)
        state = engine.state()
        before = {name: array.copy() for name, array in state.items()}
        trained(engine)
        for name, array in state.items():
            np.testing.assert_array_equal(array, before[name])
        assert any((engine.state()[name] != before[name]).any() for name in before)

    def test_a_learning_rate_holds_from_the_next_window_on(self):
        engine = self.make()
        engine.set_learning_rate(1e-30)
        start = engine.weights()
        moved = trained(engine)[1][engine.layout.sections[0].span]
        # Statistics follow the batches, whatever the rate is.
        held = start[engine.layout.sections[0].span]
        np.testing.assert_allclose(moved, held, rtol=0, atol=1e-20)

    def test_a_late_attempt_steps_as_a_fresh_one(self):
        late = self.make(momentum=0.5)
        late.set_schedule_offset(1000)
        np.testing.assert_array_equal(trained(late)[1], trained(self.make(momentum=0.5))[1])

    def test_schedules_go_on_and_nothing_else_changes(self):
        engine, other = self.make(momentum=0.5), self.make(momentum=0.5)
        engine.set_learning_rate(0.05)
        _, middle = trained(engine)
        other.restore(engine.state())
        engine.set_schedule_offset(1000)
        np.testing.assert_array_equal(trained(engine, middle)[1], trained(other, middle)[1])

    def test_a_state_brought_back_and_its_place_make_a_fresh_engine(self):
        engine, fresh = self.make(momentum=0.5), self.make(momentum=0.5)
        start = engine.weights()
        first = {name: array.copy() for name, array in engine.state().items()}
        engine.set_learning_rate(0.05)
        trained(engine)
        engine.restore(first)
        for each in (engine, fresh):
            each.set_schedule_offset(1000)
        for name, array in engine.state().items():
            np.testing.assert_array_equal(array, fresh.state()[name])
        np.testing.assert_array_equal(trained(engine, start)[1], trained(fresh, start)[1])

    def test_an_evaluation_is_of_the_weights_that_are_given_and_leaves_the_training_alone(self):
        engine, other = self.make(), self.make()
        blocks = [block_of(3), block_of(4, steps=1, batch=5)]
        start = engine.weights()
        first = engine.evaluate(start + 1, blocks)
        _, after = trained(engine, start)
        assert engine.evaluate(start + 1, blocks) == first
        assert engine.evaluate(after, blocks) != first
        _, again = trained(engine, after)
        expected = trained(other, trained(other)[1])[1]
        np.testing.assert_allclose(again, expected, rtol=self.tolerance)

    def test_an_evaluation_is_over_all_rows_whatever_their_blocks(self):
        engine, block = self.make(), block_of(5)
        parts = [block.part(slice(n, n + 1), slice(None)) for n in range(STEPS)]
        whole, found = (engine.evaluate(engine.weights(), each) for each in ([block], parts))
        assert found == whole
        halves = [
            engine.evaluate(engine.weights(), part)["loss"] for part in (parts[:2], parts[2:])
        ]
        assert whole["loss"] == pytest.approx(np.mean(halves), rel=1e-5)


class EngineContract(WindowContract):
    """What holds for an engine that a worker's core can drive with any rule."""

    def test_gradients_at_the_start_are_those_of_the_steps(self):
        """One step of plain SGD by the gradient that a window without steps tells."""
        one = block_of(steps=1)
        start = self.make().weights()
        _, gradient = trained(self.make(LocalSteps.NONE), start, [one])
        stepping = self.make(LocalSteps.NONE)
        weights = start.copy()
        stepping.apply(gradient, weights)
        _, expected = trained(self.make(), start, [one])
        np.testing.assert_allclose(weights, expected, rtol=1e-5, atol=1e-6)

    def test_a_step_goes_from_the_weights_that_are_given(self):
        start = self.make().weights() + 1
        _, gradient = trained(self.make(LocalSteps.NONE))
        one, other = self.make(LocalSteps.NONE), self.make(LocalSteps.NONE)
        trained(other)
        for engine in (one, other):
            weights = start.copy()
            engine.apply(gradient, weights)
            assert np.abs(weights - start).max() > 0
            np.testing.assert_allclose(weights, start - 0.1 * gradient, rtol=1e-5, atol=1e-6)

    def test_a_worker_that_takes_a_state_over_steps_as_the_other(self):
        _, gradient = trained(self.make(LocalSteps.NONE, momentum=0.5))
        first, second = (self.make(LocalSteps.NONE, momentum=0.5) for _ in range(2))
        weights = first.weights()
        first.apply(gradient, weights)
        second.load_step_state(first.step_state())
        for one, other in zip(first.step_state(), second.step_state(), strict=True):
            assert one.dtype == other.dtype
            np.testing.assert_array_equal(one, other)
        results = weights.copy(), weights.copy()
        first.apply(gradient, results[0])
        second.apply(gradient, results[1])
        np.testing.assert_array_equal(*results)
        plain = weights.copy()
        self.make(LocalSteps.NONE, momentum=0.5).apply(gradient, plain)
        assert np.abs(plain - results[0]).max() > 0


class TestQuadratic(EngineContract):
    """The parabola of the simulations."""

    def make(self, kind=LocalSteps.OPTIMIZER, momentum=0.0, rate=0.1):
        from tests.quadratic_learner import QuadraticLearner

        start = np.array([4.0, -2.0, 1.0], np.float32)
        return QuadraticLearner(start, np.array([1.0, 0.5, 2.0]), rate, momentum, kind)


class ModelWindowContract(WindowContract):
    """What holds for an engine of a real model, in one process or several."""

    def test_a_warm_up_leaves_everything_as_it_was(self):
        engine = self.make(momentum=0.5)
        before = {name: array.copy() for name, array in engine.state().items()}
        weights = engine.weights()
        assert engine.warm_up(block_of()) > 0
        np.testing.assert_array_equal(engine.weights(), weights)
        for name, array in engine.state().items():
            np.testing.assert_array_equal(array, before[name])


class ModelEngineContract(ModelWindowContract, EngineContract):
    """What holds for an engine of a real model, with any rule."""

    def test_states_are_swapped_where_the_engine_computes(self):
        engine = self.make(momentum=0.5)
        fresh, start = engine.device_state(), engine.weights()
        _, expected = trained(engine, start)
        trained_state = engine.swap_state(fresh)
        np.testing.assert_array_equal(trained(engine, start)[1], expected)
        engine.swap_state(trained_state)
        assert np.abs(trained(engine, start)[1] - expected).max() > 0

    def test_a_seed_decides_the_random_layers(self):
        results = []
        for seed in ((3, 0), (3, 1), (3, 0)):
            engine = self.make()
            engine.set_seed(seed)
            results.append(trained(engine)[1])
        np.testing.assert_array_equal(results[0], results[2])
        assert np.abs(results[0] - results[1]).max() > 0

    def test_fresh_weights_follow_from_their_seed_and_leave_the_model_alone(self):
        engine = self.make()
        before = engine.weights()
        one, other, again = (engine.initial_weights((seed, 1)) for seed in (1, 2, 1))
        assert one.shape == (engine.layout.size,)
        np.testing.assert_array_equal(one, again)
        assert np.abs(one - other).max() > 0
        np.testing.assert_array_equal(engine.weights(), before)


def compiled(model, momentum, rate):
    import keras

    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(rate, momentum=momentum), loss)
    return model


def model_of(momentum, rate, dropout=0.25):
    import keras

    keras.utils.set_random_seed(7)
    layers = [
        keras.Input((WIDTH,)),
        keras.layers.Dense(4, "tanh", name="first"),
        keras.layers.BatchNormalization(),
        keras.layers.Dropout(dropout, name="second"),
        keras.layers.Dense(2),
    ]
    return compiled(keras.Sequential(layers), momentum, rate)


@pytest.mark.tensorflow
class TestKeras(ModelEngineContract):
    """The backend of this process."""

    tolerance = 1e-6
    dropout = 0.25
    options: Mapping[str, Any] = {}

    def make(self, kind=LocalSteps.OPTIMIZER, momentum=0.0, rate=0.1):
        from distkeras_grid.engine.registry import build_engine, current_backend

        model = model_of(momentum, rate, self.dropout)
        return build_engine(current_backend(), model, local_steps=kind, **self.options)

    def test_an_evaluation_is_that_of_keras(self):
        engine, block = self.make(), block_of(5)
        x, y = (array.reshape(-1, *array.shape[2:]) for array in block.arrays)
        expected = engine.model.evaluate(x, y, batch_size=BATCH, verbose=0, return_dict=True)
        assert engine.evaluate(engine.weights(), [block]) == pytest.approx(expected, rel=1e-5)

    def test_a_step_goes_from_the_weights_that_are_given(self):
        """Statistics are those that come with the gradient."""
        cut = self.make().layout.trainable_size
        start = self.make().weights() + 1
        _, gradient = trained(self.make(LocalSteps.NONE))
        weights = start.copy()
        self.make(LocalSteps.NONE).apply(gradient, weights)
        expected = np.concatenate([start[:cut] - 0.1 * gradient[:cut], gradient[cut:]])
        np.testing.assert_allclose(weights, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.full
@pytest.mark.tensorflow
class TestShared(EngineContract):
    """The engine of one of several simulated workers, who share it."""

    tolerance = 1e-6

    def make(self, kind=LocalSteps.OPTIMIZER, momentum=0.0, rate=0.1):
        from distkeras_grid.simulation.shared_engine import SharedEngine

        shared = SharedEngine(TestKeras().make(kind, momentum, rate), 2, seed=1)
        trained(shared.of(0))
        return shared.of(1)

    test_a_step_goes_from_the_weights_that_are_given = (
        TestKeras.test_a_step_goes_from_the_weights_that_are_given
    )


@pytest.mark.full
class TestWholeBlocks(TestKeras):
    """The same where XLA compiles the loop over a whole block."""

    tolerance = 1e-5
    options: Mapping[str, Any] = {"block_shape": (STEPS, BATCH), "jit": True}

    def test_the_loop_is_compiled(self):
        assert self.make().jit

    def test_a_window_may_come_in_several_blocks(self):
        # In XLA, TensorFlow draws other numbers than in its kernels, which train other blocks.
        self.dropout = 0.0
        super().test_a_window_may_come_in_several_blocks()


def test_a_backend_without_an_engine_is_refused():
    from distkeras_grid.engine.registry import build_engine

    with pytest.raises(ConfigurationError):
        build_engine("abacus", None)
