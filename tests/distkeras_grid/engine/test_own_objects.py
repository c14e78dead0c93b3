"""Custom objects stay with a model as long as it lives."""

from __future__ import annotations

import gc

from distkeras_grid.engine.own_objects import objects_of, remember_objects


class Model:
    """Stands for a Keras model: it can be referred to weakly, and is equal to itself only."""


def test_objects_are_those_of_one_model():
    first, second = Model(), Model()
    remember_objects(first, {"Own": Model})
    remember_objects(second, None)
    assert objects_of(first) == {"Own": Model}
    assert objects_of(second) == {}
    objects_of(first).clear()
    assert objects_of(first) == {"Own": Model}


def test_a_model_that_is_gone_leaves_nothing():
    from distkeras_grid.engine import own_objects

    model = Model()
    before = len(own_objects._known)
    remember_objects(model, {"Own": Model})
    del model
    gc.collect()
    assert len(own_objects._known) == before
