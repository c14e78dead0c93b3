"""What is looked at before a run, beside data and model."""

from __future__ import annotations

import socket

import pytest

from distkeras_grid.spark.doctor import CheckLevel, CheckResult
from distkeras_grid.trainers import preflight
from tests.distkeras_grid.trainers.small import build

pytestmark = [pytest.mark.spark, pytest.mark.tensorflow]


@pytest.mark.full
def test_a_port_that_is_taken_is_said_and_the_next_one_serves(frame, capsys):
    from distkeras_grid import ADAG

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ADAG(build(), num_workers=1, master_port=port).train(frame)
    assert (
        f"master_port {port} is taken: the parameter server listens on" in capsys.readouterr().err
    )


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
