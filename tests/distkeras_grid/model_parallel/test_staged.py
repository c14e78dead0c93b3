"""Where models can be cut, what is refused, and that stages are the model."""

from __future__ import annotations

import numpy as np
import pytest

from distkeras_grid.engine.keras_model import get_flat_weights, model_from_bytes, model_to_bytes
from distkeras_grid.errors import ConfigurationError
from distkeras_grid.model_parallel.cuts import choose_cuts
from distkeras_grid.model_parallel.piece_costs import measure_pieces
from distkeras_grid.model_parallel.staged import (
    check_mean_loss,
    check_stageable,
    find_cuts,
    gather,
    places_of,
    scatter,
    stages_of,
)

pytestmark = pytest.mark.tensorflow


def residual():
    import keras

    given = keras.Input((6, 6, 2), name="image")
    h = keras.layers.Conv2D(4, 3, padding="same", name="stem")(given)
    for number in range(2):
        a = keras.layers.Conv2D(4, 3, padding="same", activation="relu", name=f"a{number}")(h)
        b = keras.layers.Conv2D(4, 3, padding="same", name=f"b{number}")(a)
        h = keras.layers.Add(name=f"add{number}")([h, b])
    h = keras.layers.GlobalAveragePooling2D(name="pool")(h)
    outputs = keras.layers.Dense(3, activation="softmax", name="out")(h)
    model = keras.Model(given, outputs)
    model.compile("adam", "sparse_categorical_crossentropy")
    return model


def row(*layers, shape=(5,), **given):
    import keras

    return keras.Sequential([keras.Input(shape, **given), *layers])


def test_a_graph_is_cut_where_a_single_tensor_leads_on():
    assert [cut.name for cut in find_cuts(residual())] == ["stem", "add0", "add1", "pool"]


def test_a_graph_that_has_a_way_around_everything_is_cut_nowhere():
    import keras

    given = keras.Input((4,))
    h = keras.layers.Dense(4)(given)
    h = keras.layers.Dense(4)(h)
    model = keras.Model(given, keras.layers.Add()([given, h]))
    assert find_cuts(model) == []


def test_no_cut_is_between_two_uses_of_the_same_weights():
    import keras

    twice = keras.layers.Dense(4, name="twice")
    given = keras.Input((4,))
    h = keras.layers.Dense(4, name="one")(given)
    h = keras.layers.Dense(4, name="between")(twice(h))
    h = keras.layers.Dense(4, name="after")(twice(h))
    model = keras.Model(given, keras.layers.Dense(2, name="out")(h))
    assert [cut.name for cut in find_cuts(model)] == ["one", "after"]


def test_stages_one_after_the_other_are_the_model_also_from_their_archives():
    model = model_from_bytes(model_to_bytes(residual()))
    cuts = find_cuts(model)
    x = np.random.default_rng(0).random((3, 6, 6, 2), np.float32)
    expected = np.asarray(model(x))
    stages = [
        model_from_bytes(model_to_bytes(stage)) for stage in stages_of(model, [cuts[0], cuts[2]])
    ]
    for stage in stages:
        x = stage(x)
    np.testing.assert_allclose(np.asarray(x), expected, rtol=1e-6)


def test_each_weight_has_one_place_and_goes_there_and_back():
    model = residual()
    stages = stages_of(model, find_cuts(model)[1:3])
    places = [places_of(model, stage) for stage in stages]
    vector = get_flat_weights(model)
    back = np.full_like(vector, np.nan)
    for stage, own in zip(stages, places, strict=True):
        part = gather(vector, own)
        np.testing.assert_array_equal(part, get_flat_weights(stage))
        scatter(part, own, back)
    np.testing.assert_array_equal(back, vector)


def own_step():
    import keras

    class Own(keras.Model):
        def train_step(self, data):
            return super().train_step(data)

    given = keras.Input((5,))
    return Own(given, keras.layers.Dense(3)(given))


def several():
    import keras

    one, other = keras.Input((5,)), keras.Input((5,))
    return keras.Model([one, other], keras.layers.Add()([one, other]))


def refused():
    import keras

    layers = keras.layers
    return {
        "its own train_step": own_step,
        "2 inputs": several,
        "an input of int32": lambda: row(layers.Embedding(9, 3), dtype="int32"),
        "adds losses": lambda: row(layers.Dense(3, kernel_regularizer="l2")),
        "A mask": lambda: row(layers.Embedding(9, 3, mask_zero=True)),
        "Batch normalization": lambda: row(layers.Dense(3), layers.BatchNormalization()),
        "with an Input": lambda: keras.Sequential([layers.Dense(3)]),
    }


@pytest.mark.parametrize(
    "why",
    [
        "its own train_step",
        "2 inputs",
        "an input of int32",
        "adds losses",
        "A mask",
        "Batch normalization",
        "with an Input",
    ],
)
def test_models_that_stages_would_train_otherwise_are_refused(why):
    with pytest.raises(ConfigurationError, match=why):
        check_stageable(refused()[why](), 2)


def test_batch_normalization_sees_whole_batches_if_there_is_one_micro_batch():
    import keras

    model = row(keras.layers.Dense(3), keras.layers.BatchNormalization())
    check_stageable(model, 1)
    model.layers[-1].trainable = False
    check_stageable(model, 2)


def test_losses_that_are_no_mean_over_rows_are_refused():
    import keras

    model = row(keras.layers.Dense(3))
    for loss in ("mse", keras.losses.MeanSquaredError(), lambda y, p: (y - p) ** 2):
        model.compile("sgd", loss)
        check_mean_loss(model, 2)
    model.compile("sgd", keras.losses.MeanSquaredError(reduction="sum"))
    check_mean_loss(model, 1)
    with pytest.raises(ConfigurationError, match="reduction='sum'"):
        check_mean_loss(model, 2)


def test_pieces_are_measured_and_the_model_stays_as_it_is():
    import keras

    layers = keras.layers
    model = row(
        layers.Dense(64, activation="relu", name="one"),
        layers.Dropout(0.5, name="drop"),
        layers.Dense(16, name="two"),
        shape=(32,),
    )
    model.compile("adam", "mse")
    before = [variable.numpy() for variable in model.variables]
    pieces = measure_pieces(model, find_cuts(model), rows=8)
    assert [piece.name for piece in pieces] == ["one", "drop", "two"]
    assert [piece.trains for piece in pieces] == [True, False, True]
    # Weights, two sets of gradients, and the two moments of Adam.
    assert pieces[0].held == 4 * 5 * (32 * 64 + 64)
    assert pieces[0].weights == 4 * (32 * 64 + 64)
    assert pieces[0].sent == 4 * 8 * 64
    # The backward pass of relu needs its output, and that of a kernel without activation nothing
    # but its input.
    assert pieces[0].kept >= 4 * 8 * 64
    assert pieces[2].kept < 4 * 8 * 64
    assert all(piece.forward > 0 and piece.backward > 0 for piece in pieces)
    for variable, value in zip(model.variables, before, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value)
    assert choose_cuts(pieces, 2, 2).cuts in {("one",), ("drop",)}


def test_pieces_without_a_fixed_size_are_told():
    import keras

    given = keras.Input((None, 4))
    h = keras.layers.Dense(3, name="one")(given)
    model = keras.Model(given, keras.layers.GlobalAveragePooling1D(name="pool")(h))
    model.compile("sgd", "mse")
    with pytest.raises(ConfigurationError, match="'one' has no fixed size"):
        measure_pieces(model, find_cuts(model), rows=2)
