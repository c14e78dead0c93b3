"""The rows of a simulated run. Local sets are read from files, without Spark."""

from __future__ import annotations

import numpy as np
import pytest

from distkeras_grid import AveragingTrainer, Cluster, LocalSets
from distkeras_grid.errors import ConfigurationError, EmptyDataError
from distkeras_grid.local_sets.drawing import digest_of
from distkeras_grid.spec import RunSpec
from distkeras_grid.stores.catalogue import Catalogue
from distkeras_grid.trainers.local_data import LocalData
from tests.distkeras_grid.stores.tables import CLASSES, FIELD, store_of, write_tiles

pytestmark = pytest.mark.tensorflow

TIMES = {"batch_seconds": 1.0, "tile_seconds": 0.25, "test_batch_seconds": 0.5}


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """Two images of each class, one for training and one for validation."""
    folder = tmp_path_factory.mktemp("tiles")
    write_tiles(folder)
    return Catalogue(store_of(folder), ("train",) * 3 + ("validation",) * 3)


def sets_of(found, **more):
    return LocalSets(found, **{"iterations": 2, "local_train": 30, "local_test": 12, **more})


def trainer_of(**arguments):
    import keras

    keras.utils.set_random_seed(3)
    model = keras.Sequential(
        [
            keras.Input(FIELD.shape),
            keras.layers.Flatten(),
            keras.layers.Dense(CLASSES, activation="softmax"),
        ]
    )
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    settings = {"features_col": "image", "batch_size": 10, "progress": False, "jit": False}
    return AveragingTrainer(model, **{**settings, **arguments})


def weights(model):
    return np.concatenate([w.ravel() for w in model.get_weights()])


def test_local_sets_are_drawn_tested_and_timed(found):
    sets, cluster = sets_of(found), Cluster(2, **TIMES)
    x, y = np.zeros((6, *FIELD.shape), np.float32), np.arange(6) % CLASSES
    run = trainer_of().simulate(sets, cluster, seed=4, validation_data=(x, y))
    drawing = LocalData(sets, found).plan(4, 2).drawing
    assert {(r.iteration, r.worker): r.local.digest for r in run.history.local_sets} == {
        (t + 1, j): digest_of(drawing.train(t, j)) for t in range(2) for j in range(2)
    }
    # 30 tiles are read before the start; 3 batches; 12 tiles and 2 batches of a test.
    assert [r.started for r in run.history.select(worker=1)] == [7.5, 7.5 + 3 + 3 + 1 + 7.5]
    told = run.history.local_tests()
    assert set(told.read_seconds) == {10.5}
    assert set(told.test_seconds) == {1.0}
    assert told.accuracy.between(0, 1).all()
    assert (told.bytes_read > 0).all()
    assert len(run.history.history["val_accuracy"]) == 2
    described = run.history.params["local_sets"]
    assert described["drawn_coverage"] == described["folded_coverage"] > 0
    spec = RunSpec.from_json(run.history.params["spec"])
    assert spec.data.local == sets.spec
    assert (spec.rows, spec.epochs) == (60, 2)
    assert run.cluster == cluster


def test_the_same_seed_gives_the_same_run(found):
    runs = [
        trainer_of().simulate(sets_of(found), Cluster(2, **TIMES), seed=seed) for seed in (4, 4, 5)
    ]
    np.testing.assert_array_equal(weights(runs[0].model), weights(runs[1].model))
    assert runs[0].history.to_jsonl_text() == runs[1].history.to_jsonl_text()
    assert (weights(runs[0].model) != weights(runs[2].model)).any()


def test_what_the_cluster_does_not_say_is_measured(found):
    run = trainer_of().simulate(sets_of(found), Cluster(2, test_batch_seconds=2.0))
    assert min(run.cluster.batch_seconds, run.cluster.tile_seconds) > 0
    assert run.cluster.test_batch_seconds == 2.0
    measured = trainer_of().simulate(sets_of(found), Cluster(2)).cluster
    assert measured.test_batch_seconds > 0
    given = trainer_of().simulate(sets_of(found), Cluster(2, batch_seconds=1.0))
    assert {record.local.read_seconds for record in given.history.local_sets} == {0.0}


def test_a_run_waits_for_no_more_than_its_quorum(found):
    cluster = Cluster(4, **TIMES, speeds=[1, 1, 1, 0.2])
    run = trainer_of(quorum=0.75).simulate(sets_of(found, iterations=4), cluster, seed=1)
    assert {record.worker for record in run.history.late} == {3}
    assert {r.worker for r in run.history.local_sets if not r.folded} == {3}


def test_classes_have_weights_here_too(found):
    weighted, plain = (
        trainer_of().simulate(sets_of(found), Cluster(1, **TIMES), seed=4, class_weight=given)
        for given in ({1: 3.0}, None)
    )
    assert weighted.spec.data.class_weight == {1: 3.0}
    assert (weights(weighted.model) != weights(plain.model)).any()
    balanced = trainer_of().simulate(
        sets_of(found), Cluster(1, **TIMES), seed=4, class_weight="balanced"
    )
    np.testing.assert_array_equal(weights(balanced.model), weights(plain.model))


def test_what_cannot_be_drawn_is_refused(found):
    with pytest.raises(EmptyDataError):
        trainer_of().simulate(sets_of(found, local_train=90), Cluster(2, **TIMES))
    with pytest.raises(ConfigurationError):
        trainer_of(features_col="pixels").simulate(sets_of(found), Cluster(2, **TIMES))
    with pytest.raises(ConfigurationError):
        trainer_of(num_epoch=2).simulate(sets_of(found), Cluster(2, **TIMES))
