"""What is looked at before a run, beside data and model."""

from __future__ import annotations

import socket

import pytest

from distkeras_grid.errors import ConfigurationError, SchemaError, StartTimeoutError
from distkeras_grid.spark.doctor import CheckLevel, CheckResult
from distkeras_grid.spark.memory import ModelSize
from distkeras_grid.trainers import preflight, preparation

pytestmark = [pytest.mark.spark, pytest.mark.tensorflow]


@pytest.fixture(scope="module")
def frame(spark):
    return spark.range(40).selectExpr("array(cast(id as float), 1f) as features", "id % 2 as label")


def build(optimizer="sgd"):
    import keras

    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2, activation="softmax")])
    model.compile(optimizer, "sparse_categorical_crossentropy")
    return model


@pytest.mark.full
def test_a_port_that_is_taken_is_said_and_the_next_one_serves(frame, capsys):
    from distkeras_grid import ADAG

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ADAG(build(), num_workers=1, master_port=port).train(frame)
    assert (
        f"master_port {port} is taken: the parameter server listens on" in capsys.readouterr().err
    )


def test_a_wrong_column_is_refused_before_executors_are_waited_for(frame, monkeypatch, tmp_path):
    """Unless executors have to read the files to tell the columns."""
    from distkeras_grid import ADAG

    def wait(*_):
        raise StartTimeoutError("none has come")

    monkeypatch.setattr(preparation, "lacks_executors", lambda _: True)
    monkeypatch.setattr(preparation, "wait_for_executors", wait)
    with pytest.raises(SchemaError):
        ADAG(build(), num_workers=1, features_col="pixels").train(frame)
    with pytest.raises(StartTimeoutError):
        ADAG(build(), num_workers=1).train(frame)
    with pytest.raises(StartTimeoutError):
        ADAG(build(), num_workers=1, features_col="pixels").train(str(tmp_path))


@pytest.mark.full
def test_containers_are_compared_with_model_and_batches_and_warnings_are_said(
    frame, monkeypatch, capsys
):
    from distkeras_grid import ADAG

    asked = []

    def answer(setting, master, model, **known):
        asked.append((model, known))
        return [CheckResult("memory", level, "too small")]

    monkeypatch.setattr(preflight, "check_containers", answer)
    trainer = ADAG(build(), num_workers=2, batch_size=4, communication_window=3)
    level = CheckLevel.BAD
    with pytest.raises(ConfigurationError, match="too small"):
        trainer.train(frame, validation_data=frame)
    assert len(trainer.history.records) == 0
    level = CheckLevel.WARN
    trainer.train(frame)
    assert "too small" in capsys.readouterr().err
    # Six weights; a window of 3 batches of 4 rows of 2 float32; 40 rows for validation.
    (model, known), (_, without) = asked
    assert model == ModelSize(weights=6, optimizer_slots=model.optimizer_slots, block_bytes=96)
    assert known == {"slots": 1, "workers": 2, "tasks": 2, "validation_bytes": 320}
    assert without["validation_bytes"] == 0


def test_an_optimizer_that_is_built_tells_what_it_keeps(frame, monkeypatch):
    from distkeras_grid import ADAG

    asked = []

    def answer(setting, master, model, **known):
        asked.append(model.optimizer_slots)
        return [CheckResult("memory", CheckLevel.BAD, "enough of this")]

    monkeypatch.setattr(preflight, "check_containers", answer)
    for optimizer in ("sgd", "adam"):
        model = build(optimizer)
        model.optimizer.build(model.trainable_variables)
        with pytest.raises(ConfigurationError, match="enough of this"):
            ADAG(model, num_workers=1).train(frame)
    assert asked == [0, 2]


@pytest.mark.parametrize(
    ("master", "settings", "levels"),
    [
        ("local[2]", {}, []),
        ("local[2]", {"spark.driver.host": "10.0.0.5"}, []),
        ("spark://127.0.0.1:7077", {"spark.driver.host": "127.0.0.1"}, [CheckLevel.OK]),
        ("spark://10.0.0.1:7077", {"spark.driver.host": "10.0.0.5"}, [CheckLevel.WARN]),
        ("yarn", {}, [CheckLevel.WARN]),
        ("yarn", {"spark.ssl.rpc.enabled": "true"}, [CheckLevel.OK]),
    ],
)
def test_a_key_that_crosses_a_network_unencrypted_is_said(master, settings, levels):
    found = preflight.check_key(master, settings.get, "node-1")
    assert [finding.level for finding in found] == levels


def test_what_is_said_of_the_key_is_a_note_of_the_run(frame, monkeypatch, capsys):
    from distkeras_grid import ADAG

    found = CheckResult("encryption", CheckLevel.WARN, "the key is seen")
    monkeypatch.setattr(preflight, "check_key", lambda *_: [found])
    ADAG(build(), num_workers=1).train(frame)
    assert "the key is seen" in capsys.readouterr().err
