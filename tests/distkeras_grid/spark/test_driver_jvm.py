"""The address of a host while its JVM starts."""

from __future__ import annotations

import os

import pytest

from distkeras_grid.spark import driver_jvm
from distkeras_grid.spark.driver_jvm import with_address


@pytest.mark.parametrize(
    ("name", "set_by_user", "during"),
    [
        ("localhost", None, None),
        ("name.invalid", None, "127.0.0.1"),
        ("name.invalid", "10.0.0.7", "10.0.0.7"),
    ],
)
def test_a_host_without_an_address_gets_one_while_its_jvm_starts(
    monkeypatch, name, set_by_user, during
):
    monkeypatch.setattr(driver_jvm.socket, "gethostname", lambda: name)
    monkeypatch.delenv("SPARK_LOCAL_IP", raising=False)
    if set_by_user:
        monkeypatch.setenv("SPARK_LOCAL_IP", set_by_user)
    with with_address():
        assert os.environ.get("SPARK_LOCAL_IP") == during
    assert os.environ.get("SPARK_LOCAL_IP") == set_by_user
