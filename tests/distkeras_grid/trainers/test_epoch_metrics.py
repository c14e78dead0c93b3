"""The numbers of a run's history are those of ``fit`` and ``evaluate``."""

from __future__ import annotations

import numpy as np
import pytest

from distkeras_grid.engine.metric_state import as_numbers
from distkeras_grid.simulation.cluster import Cluster, Outage

pytestmark = pytest.mark.tensorflow

ROWS, WIDTH, CLASSES, BATCH = 90, 3, 3, 8
RANDOM = np.random.default_rng(4)
X = RANDOM.normal(size=(ROWS, WIDTH)).astype(np.float32)
Y = np.eye(CLASSES, dtype=np.float32)[(X @ RANDOM.normal(size=(WIDTH, CLASSES))).argmax(axis=1)]
WEIGHT = RANDOM.uniform(0, 2, ROWS).astype(np.float32)


def build(rate=0.1):
    import keras
    from keras import metrics as m

    # Names of metrics are counted in a process.
    keras.utils.clear_session()
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input((WIDTH,)), keras.layers.Dense(CLASSES, "softmax")])
    terms = {"metrics": ["accuracy", m.Recall(), m.TruePositives(), m.AUC(), m.F1Score()]}
    terms["weighted_metrics"] = ["accuracy"]
    model.compile(keras.optimizers.SGD(rate), "categorical_crossentropy", **terms)
    return model


def trainer(name, model, **arguments):
    import distkeras_grid

    arguments = {"progress": False, "batch_size": BATCH, "jit": False, **arguments}
    return getattr(distkeras_grid, name)(model, **arguments)


def fitted(model, epochs=2):
    """Return what ``fit`` puts into its history, epoch by epoch, vectors as numbers."""
    terms = {"batch_size": BATCH, "epochs": epochs, "shuffle": False, "verbose": 0}
    held_out = (X[:40], Y[:40], WEIGHT[:40])
    history = model.fit(X, Y, sample_weight=WEIGHT, validation_data=held_out, **terms).history
    each = zip(*history.values(), strict=True)
    return [as_numbers(dict(zip(history, values, strict=True))) for values in each]


def test_one_worker_has_the_history_of_fit():
    wanted = fitted(build())
    single = trainer("SingleTrainer", build(), num_epoch=2, communication_window=3)
    held_out = (X[:40], Y[:40], WEIGHT[:40])
    run = single.simulate(
        (X, Y, WEIGHT), Cluster(1, batch_seconds=0.1), validation_data=held_out, shuffle=False
    )
    for record, epoch in zip(run.history.epoch_records, wanted, strict=True):
        logs = dict(record.logs())
        assert logs.pop("learning_rate") == pytest.approx(0.1)
        assert logs == pytest.approx(epoch, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize(
    "name", ["AveragingTrainer", pytest.param("DOWNPOUR", marks=pytest.mark.full)]
)
def test_each_row_counts_once_in_an_epoch_whoever_is_lost(name):
    """At a rate of 0 each epoch of rounds is an evaluation; without rounds all epochs are."""
    found = build(0.0).evaluate(X, Y, sample_weight=WEIGHT, verbose=0, return_dict=True)
    cluster = Cluster(3, batch_seconds=0.1, outages=[Outage(worker=1, at=0.35, seconds=1.0)])
    run = trainer(name, build(0.0), num_epoch=3, communication_window=1).simulate(
        (X, Y, WEIGHT), cluster, seed=1
    )
    assert run.lost
    epochs = [dict(record.logs()) for record in run.history.epoch_records]
    assert {logs.pop("learning_rate") for logs in epochs} == {0.0}
    assert sum(logs["true_positives"] for logs in epochs) == 3 * found["true_positives"]
    if name == "AveragingTrainer":
        assert epochs == [pytest.approx(as_numbers(found), rel=1e-5)] * 3
