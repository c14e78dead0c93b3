"""What the trainers that divide one model have in common."""

from __future__ import annotations

import numpy as np
import pytest

from distkeras_grid import Cluster, ConvolutionSplit, PlacedLayers, Towers
from distkeras_grid.errors import ConfigurationError

pytestmark = pytest.mark.tensorflow


def dense(name="m", width=3):
    import keras

    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(width)], name=name)


def build(kind, **arguments):
    import keras

    if kind is Towers:
        head = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3)], name="head")
        return Towers([dense("a"), dense("b")], head, "sgd", "mse", **arguments)
    return kind(dense(), "sgd", "mse", **arguments)


KINDS = pytest.mark.parametrize("kind", [ConvolutionSplit, Towers, PlacedLayers])


@KINDS
@pytest.mark.parametrize("workers", [1, 2])
def test_a_simulated_cluster_is_refused(kind, workers):
    """Its workers have a model each, so it would simulate another algorithm."""
    arrays = np.zeros((8, 4), np.float32), np.zeros((8, 3), np.float32)
    with pytest.raises(ConfigurationError, match=f"{kind.__name__}.simulate"):
        build(kind, progress=False).simulate(arrays, Cluster(workers, batch_seconds=1.0))


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        (PlacedLayers, {"micro_batches": 0}),
        (PlacedLayers, {"micro_batches": 33}),
        (PlacedLayers, {"cuts": "one"}),
        (PlacedLayers, {"cuts": ["one"], "num_workers": 3}),
        (PlacedLayers, {"jit": True}),
        (ConvolutionSplit, {"layers": "some"}),
        (ConvolutionSplit, {"jit": True}),
        (Towers, {"num_workers": 3}),
    ],
)
def test_wrong_arguments_are_refused_by_name(kind, wrong):
    *_, name = wrong
    with pytest.raises(ConfigurationError, match=name):
        build(kind, **wrong)


def test_a_run_tells_how_its_model_is_divided():
    placed = build(PlacedLayers, cuts=["one"], micro_batches=4)
    assert placed.arguments() == {"micro_batches": 4, "cuts": ["one"]}
    towers = build(Towers)
    assert towers.arguments() == {"towers": ["a", "b"], "master": "head"}
    assert "keras_model" not in towers.get_params()
    assert placed.requested_workers == towers.requested_workers == 1


def test_all_tasks_are_counted_and_one_worker_trains():
    assert build(Towers).devices == 2
    assert build(ConvolutionSplit, num_workers=3).devices == 3
    assert build(PlacedLayers, num_workers=4).devices == 4
    assert build(PlacedLayers, cuts=["one", "two", "three"]).devices == 4
    # As many as there are slots.
    assert build(PlacedLayers).devices == build(ConvolutionSplit).devices == 0
    assert build(PlacedLayers).stages == 0
    # These give each task the whole model.
    assert build(Towers).stages == build(ConvolutionSplit).stages == 1
