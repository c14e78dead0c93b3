"""Engines whose devices are in threads of this process, behind real lines in memory."""

from __future__ import annotations

from contextlib import contextmanager

from distkeras_grid.engine.keras_model import model_from_bytes, model_to_bytes, weight_layout
from distkeras_grid.model_parallel.device_group import DeviceGroup
from distkeras_grid.model_parallel.pipeline import RemoteStages
from distkeras_grid.model_parallel.pipeline_partition import (
    FullModelLayout,
    find_cuts,
    stages_of,
    weight_slices,
)
from distkeras_grid.model_parallel.placed_engine import PlacedEngine
from distkeras_grid.model_parallel.stage import StageComputer
from distkeras_grid.model_parallel.tower import TowerComputer
from distkeras_grid.model_parallel.towers_engine import RemoteTowers, TowersEngine
from tests.distkeras_grid.model_parallel.helpers import PATIENT, Dies, connect


@contextmanager
def ending(members, threads):
    """Let the devices go at the end of a block, and see their threads end."""
    try:
        yield
    finally:
        members.close()
        for thread in threads:
            thread.join(10)
            assert not thread.is_alive()


@contextmanager
def placed_engine(model, names, micro_batches=3, told=None, limits=PATIENT):
    """The engine of a model that is cut after these layers, its devices in threads."""
    import keras

    whole = model_from_bytes(model_to_bytes(model))
    known = {cut.name: cut for cut in find_cuts(whole)}
    stages = stages_of(whole, [known[name] for name in names])
    stages[-1].compile_from_config(model.get_compile_config())
    archives = [model_to_bytes(stage) for stage in stages]
    optimizer = keras.optimizers.serialize(model.optimizer)
    members = DeviceGroup(len(stages))
    computers = [
        Dies(StageComputer(model_from_bytes(archive), optimizer, first=number == 0))
        for number, archive in enumerate(archives[:-1])
    ]
    threads = [connect(members, n, computer) for n, computer in enumerate(computers, start=1)]
    assert members.wait_for_all(5.0) == len(stages)
    engine = PlacedEngine(
        model_from_bytes(archives[-1]),
        FullModelLayout(
            weight_layout(whole), tuple(weight_slices(whole, stage) for stage in stages)
        ),
        RemoteStages(members, len(names), limits) if names else None,
        micro_batches,
        on_passes=told,
    )
    engine.members, engine.computers = members, computers
    with ending(members, threads):
        yield engine


@contextmanager
def towers_engine(archive, names, limits=PATIENT):
    """The engine of a model with these towers, all but the first in threads."""
    import keras

    def parts():
        model = model_from_bytes(archive)
        return model, [model.get_layer(name) for name in names]

    members = DeviceGroup(len(names))
    threads, computers = [], []
    for number in range(1, len(names)):
        model, towers = parts()
        optimizer = keras.optimizers.serialize(model.optimizer)
        computer = Dies(TowerComputer(towers[number], optimizer))
        computers.append(computer)
        threads.append(connect(members, number, computer))
    assert members.wait_for_all(5.0) == len(names)
    model, towers = parts()
    remote = RemoteTowers(members, len(names) - 1, limits)
    engine = TowersEngine(model, towers, model.get_layer("head"), remote)
    engine.members, engine.computers = members, computers
    with ending(members, threads):
        yield engine
