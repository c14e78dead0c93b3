"""Runs on Spark whose parameter servers are tasks on executors."""

import numpy as np
import pytest

from distkeras_grid.errors import ConfigurationError, NotEnoughSlotsError
from tests.distkeras_grid.trainers.small import ROWS, build, trained, weights

pytestmark = [pytest.mark.spark, pytest.mark.tensorflow, pytest.mark.slow]

EPOCHS = 2


@pytest.mark.full
def test_one_worker_trains_the_same_bits_wherever_the_server_is(ordered):
    def run(where):
        trainer = trained(
            "ADAG",
            build(),
            ordered,
            worker_optimizer="sgd",
            learning_rate=0.1,
            num_workers=1,
            servers_on=where,
            batch_size=8,
            num_epoch=EPOCHS,
            communication_window=2,
            train={"shuffle": False},
        )
        assert trainer.history.samples == EPOCHS * ROWS
        assert trainer.history.params["servers_on"] == where
        return weights(trainer.model)

    np.testing.assert_array_equal(run("driver"), run("executors"))


@pytest.mark.full
def test_an_interrupted_run_goes_on_with_another_server(ordered, tmp_path):
    """Its first server had the state, and another one gets it on an executor."""
    import keras

    def stop(epoch, _):
        raise KeyboardInterrupt

    def run(act):
        callback = keras.callbacks.LambdaCallback(on_epoch_end=act)
        return trained(
            "DOWNPOUR",
            build(),
            ordered,
            num_workers=1,
            servers_on="executors",
            batch_size=8,
            num_epoch=3,
            communication_window=2,
            checkpoint_dir=str(tmp_path / "checkpoints"),
            resume="auto",
            train={"callbacks": [callback], "shuffle": False},
        )

    with pytest.raises(KeyboardInterrupt):
        run(stop)
    trainer = run(lambda *_: None)
    assert [each["restarted"] for each in trainer.run["resumed"]] == ["driver"]
    assert trainer.history.samples == 3 * ROWS
    windows = [(record.epoch, record.window) for record in trainer.history.records]
    assert len(windows) == len(set(windows)) == trainer.num_updates


def test_a_server_needs_a_slot_of_its_own(ordered):
    arguments = {"num_workers": 1, "num_servers": 2, "servers_on": "executors"}
    with pytest.raises(NotEnoughSlotsError, match="2 parameter servers"):
        trained("DOWNPOUR", build(), ordered, **arguments)


@pytest.mark.parametrize(
    ("name", "where"),
    [("DOWNPOUR", "moon"), ("ConvolutionSplit", "executors")],
)
def test_other_places_are_refused(ordered, name, where):
    with pytest.raises(ConfigurationError, match=f"servers_on='{where}'"):
        trained(name, build(), ordered, servers_on=where)
