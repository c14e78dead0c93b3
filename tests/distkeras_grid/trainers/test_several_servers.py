"""Runs on Spark whose center is cut over several server processes."""

import numpy as np
import pytest

from distkeras_grid.errors import ConfigurationError
from tests.distkeras_grid.trainers.small import ROWS, build, linear, trained, weights
from tests.faults.counting import counting_data, counting_model, negative_sum

pytestmark = [pytest.mark.spark, pytest.mark.tensorflow, pytest.mark.full]

EPOCHS = 3


@pytest.mark.parametrize("name", ["ADAG", "GEM", "AEASGD"])
def test_one_worker_trains_the_same_bits_with_any_number_of_servers(ordered, name):
    import keras

    def run(servers):
        seen = []
        watch = keras.callbacks.LambdaCallback(
            on_epoch_end=lambda *_: seen.append(weights(watch.model))
        )
        trainer = trained(
            name,
            build(),
            ordered,
            worker_optimizer="sgd",
            learning_rate=0.1,
            num_workers=1,
            num_servers=servers,
            batch_size=8,
            num_epoch=EPOCHS,
            communication_window=2,
            train={"shuffle": False, "callbacks": [watch]},
        )
        assert trainer.spec.exchange.servers == servers
        assert trainer.history.samples == EPOCHS * ROWS
        return [*seen, weights(trainer.model)], trainer.history

    (one, history), (three, other) = run(1), run(3)
    assert len(one) == EPOCHS + 1
    assert [each.tobytes() for each in one] == [each.tobytes() for each in three]
    assert not np.array_equal(one[0], one[-1])
    # The same windows, and the bytes of all servers: the vector's, and a header for each.
    mine, theirs = history.to_pandas(), other.to_pandas()
    assert mine["loss"].tolist() == theirs["loss"].tolist()
    vector = 4 * one[0].size
    assert (theirs["bytes_down"] > mine["bytes_down"]).all()
    assert (theirs["bytes_up"] < 2 * vector + 3000).all()


@pytest.mark.promise(
    "driver: interrupted, with several servers and checkpoints",
    '`resume="auto"` goes on; each window is once in each slice of the center.',
)
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_an_interrupted_run_goes_on_and_counts_each_row_once_an_epoch(spark, tmp_path, optimizer):
    import keras

    rows, loss = 50, negative_sum(tmp_path)
    data = counting_data(spark, rows)
    arguments = {
        "num_workers": 2,
        "num_servers": 3,
        "batch_size": 4,
        "num_epoch": EPOCHS,
        "communication_window": 2,
        "custom_objects": {"loss": loss},
        "features_col": "x",
        "checkpoint_dir": str(tmp_path / "checkpoints"),
        "resume": "auto",
    }
    if optimizer != "sgd":
        arguments["worker_optimizer"] = optimizer

    def stop(epoch, _):
        raise KeyboardInterrupt

    interrupt = keras.callbacks.LambdaCallback(on_epoch_end=stop)
    again = keras.callbacks.LambdaCallback(on_epoch_end=lambda *_: None)
    model = counting_model(rows, loss)
    with pytest.raises(KeyboardInterrupt):
        trained("DOWNPOUR", model, data, **arguments, train={"callbacks": [interrupt]})
    assert list((tmp_path / "checkpoints").glob("checkpoint-*/shard-00002.tree"))
    model = counting_model(rows, loss)
    other = {**arguments, "num_workers": 1}
    with pytest.raises(ConfigurationError, match="2 workers"):
        trained("DOWNPOUR", model, data, **other, train={"callbacks": [again]})
    trainer = trained("DOWNPOUR", model, data, **arguments, train={"callbacks": [again]})
    assert trainer.history.samples == rows * EPOCHS
    windows = [(r.worker, r.epoch, r.window) for r in trainer.history.records]
    assert len(windows) == len(set(windows)) == trainer.num_updates
    assert len(trainer.history.epoch_records) == EPOCHS
    assert [each["restarted"] for each in trainer.run["resumed"]] == ["driver"]
    if optimizer == "sgd":
        np.testing.assert_array_equal(trainer.model.get_weights()[0], np.full((rows, 1), EPOCHS))


def test_more_servers_than_weights_are_refused_before_any_work(frame):
    with pytest.raises(ConfigurationError, match="num_servers=64"):
        trained("DOWNPOUR", linear(), frame, num_workers=1, num_servers=64)
