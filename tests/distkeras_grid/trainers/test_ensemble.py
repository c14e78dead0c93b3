"""Members with centers of their own, on real Spark."""

from __future__ import annotations

import numpy as np
import pytest

from distkeras_grid.errors import ConfigurationError
from distkeras_grid.trainers.saved_run import load
from tests.distkeras_grid.trainers.small import ROWS, build, trained, weights

pytestmark = [pytest.mark.spark, pytest.mark.tensorflow]


@pytest.mark.full
def test_N1_an_ensemble_of_one_is_the_single_trainer(ordered):
    common = {"batch_size": 8, "num_epoch": 2, "train": {"shuffle": False}}
    single = trained("SingleTrainer", build("adam"), ordered, **common)
    ensemble = trained("EnsembleTrainer", build("adam"), ordered, num_workers=1, **common)
    (member,) = ensemble.models
    np.testing.assert_array_equal(weights(member), weights(single.model))


@pytest.mark.full
def test_N2_members_train_alone_each_on_all_rows(frame, arrays, tmp_path):
    common = {"batch_size": 8, "num_epoch": 3, "worker_optimizer": "sgd", "learning_rate": 0.2}
    two = trained("EnsembleTrainer", build(), frame, num_workers=2, **common)
    one = trained("EnsembleTrainer", build(), frame, num_workers=1, **common)
    assert two.history.samples == 2 * 3 * ROWS
    assert {record.staleness for record in two.history.records} == {0}
    assert not np.allclose(weights(two.models[0]), weights(two.models[1]))
    np.testing.assert_allclose(weights(two.models[0]), weights(one.models[0]), atol=1e-6)
    best = min(member.evaluate(*arrays, verbose=0)[0] for member in two.models)
    loss, accuracy = two.model.evaluate(*arrays, verbose=0)
    assert accuracy > 0.6
    assert loss < 2 * best
    two.save(tmp_path.as_uri() + "/run")
    loaded = load(tmp_path.as_uri() + "/run").model
    np.testing.assert_allclose(loaded.predict(arrays[0], verbose=0), two.model(arrays[0]), 1e-5)


@pytest.mark.full
@pytest.mark.parametrize(("data", "samples"), [("partition", ROWS), ("bootstrap", 2 * ROWS)])
def test_members_train_on_their_share_or_on_a_sample(frame, data, samples):
    trainer = trained("EnsembleTrainer", build(), frame, data=data, batch_size=8)
    assert trainer.history.samples == samples
    assert len(trainer.models) == 2


def test_an_ensemble_refuses_what_looks_at_one_center(frame):
    with pytest.raises(ConfigurationError, match="its own center"):
        trained("EnsembleTrainer", build(), frame, train={"validation_data": frame})
