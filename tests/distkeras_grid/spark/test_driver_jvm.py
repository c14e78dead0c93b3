"""The address of a host while its JVM starts."""

import os

import pytest

from distkeras_grid.spark.driver_jvm import with_address

NAMES = "SPARK_LOCAL_IP", "SPARK_LOCAL_HOSTNAME"


@pytest.mark.parametrize(
    ("set_by_user", "during"),
    [
        ((None, None), ("127.0.0.1", "127.0.0.1")),
        (("10.0.0.7", None), ("10.0.0.7", None)),
        ((None, "gate"), (None, "gate")),
    ],
)
def test_a_host_whose_name_may_be_no_address_has_one_while_its_jvm_starts(
    monkeypatch, set_by_user, during
):
    for name, value in zip(NAMES, set_by_user, strict=True):
        monkeypatch.delenv(name, raising=False)
        if value is not None:
            monkeypatch.setenv(name, value)
    with with_address():
        assert tuple(map(os.environ.get, NAMES)) == during
    assert tuple(map(os.environ.get, NAMES)) == set_by_user
