"""What holds for the TensorFlow engine alone; `test_keras_engine.py` has what holds for all."""

import pytest

from tests.distkeras_grid.engine.test_keras_engine import compiled, engine_for, images, mlp, train

pytestmark = pytest.mark.tensorflow


def test_tails_of_any_length_compile_nothing_new():
    engine = engine_for(compiled(mlp, "sgd"), jit=False)
    x, y = images()
    train(engine, (x, y))
    (functions,) = engine._functions.values()
    traces = functions.any.experimental_get_tracing_count()
    for rows in (1, 9, 30):
        train(engine, (x[:rows], y[:rows]))
    assert functions.any.experimental_get_tracing_count() == traces == 1


@pytest.mark.parametrize("jit", [True, False])
def test_an_engine_that_adopts_a_model_compiles_nothing_new(jit):
    engine = engine_for(compiled(mlp, "sgd"), jit=jit)
    for _ in range(2):
        train(engine, images(rows=60))
        engine.copy_from(compiled(mlp, "sgd"))
    (functions,) = engine._functions.values()
    assert functions.any.experimental_get_tracing_count() == 1
    assert functions.whole.experimental_get_tracing_count() == 1
