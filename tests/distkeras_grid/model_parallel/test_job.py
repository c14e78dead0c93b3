"""The devices of a run on Spark, with a master that is a function of the test."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

from distkeras_grid.model_parallel.job import run_devices
from distkeras_grid.model_parallel.master_registry import MASTER
from distkeras_grid.model_parallel.rendezvous import DevicesPlan
from distkeras_grid.parameter_server.settings import BindAddress
from tests.specs import make_settings


@pytest.mark.spark
def test_a_device_has_the_key_of_its_own_number_only(spark, tmp_path):
    settings = make_settings()

    def device(plan, batches):
        from distkeras_grid.errors import AuthenticationError
        from distkeras_grid.model_parallel.rendezvous import number_of, task_numbers

        partition, attempt = task_numbers()
        own = number_of(partition)
        for number in range(plan.count):
            try:
                with plan.guide.ask(number, attempt, 20.0):
                    found = "open"
            except AuthenticationError:
                found = "closed"
            (tmp_path / f"{own} at {number} {found}").touch()
        yield from batches

    def master(plan, *_):
        with plan.guide.ask(MASTER, 0, 20.0) as asking:
            return asking.master()

    def execute(progress, work, model):
        """As `PreparedRun.execute`, which runs the master; here it does so in this process."""
        work(None, iter(()))
        deadline = time.monotonic() + 60
        while len(list(tmp_path.iterdir())) < 6 and time.monotonic() < deadline:
            time.sleep(0.05)

    place = BindAddress("127.0.0.1", "127.0.0.1")
    prepared = SimpleNamespace(
        settings=SimpleNamespace(run="run", place=place),
        description={},
        history=SimpleNamespace(params={}),
        execute=execute,
    )
    progress = SimpleNamespace(note=lambda _: None)

    def plan_of(guide):
        return DevicesPlan(guide=guide, count=3, spec=settings.spec)

    run_devices(prepared, progress, 3, plan_of, master, device)
    found = {path.name for path in tmp_path.iterdir()}
    assert found == {
        f"{own} at {number} {'open' if number == own else 'closed'}"
        for own in (1, 2)
        for number in (0, 1, 2)
    }
