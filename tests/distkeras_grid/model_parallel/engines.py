"""Engines whose devices are in threads of this process, behind real channels in memory."""

from __future__ import annotations

from contextlib import contextmanager

from distkeras_grid.engine.keras_model import model_from_bytes, model_to_bytes, weight_layout
from distkeras_grid.errors import LocalDiskError
from distkeras_grid.model_parallel.device_group import GroupEngine, places
from distkeras_grid.model_parallel.pipeline_partition import stages_of
from distkeras_grid.model_parallel.placed_engine import FullModelLayout, PlacedEngine
from distkeras_grid.model_parallel.remote_module import RemoteModule
from distkeras_grid.model_parallel.towers_engine import TowersEngine
from tests.distkeras_grid.model_parallel.helpers import PATIENT, Mortal, group_of


@contextmanager
def engine_of(build, modules, names, limits, dies):
    """The engine of a master, with its group and the modules of its devices."""
    mortal = [Mortal(module) for module in modules]
    raises = {dies: LocalDiskError} if dies else {}
    with group_of(mortal, limits, raises) as group:
        engine = GroupEngine(build(group), group, names)
        engine.group, engine.modules = group, mortal
        try:
            yield engine
        finally:
            for module in mortal:
                module.over.set()


def placed_engine(model, names, micro_batches=3, told=None, limits=PATIENT, dies=None):
    """The engine of a model that is cut after these layers."""
    import keras

    whole = model_from_bytes(model_to_bytes(model))
    stages = stages_of(whole, names)
    stages[-1].compile_from_config(model.get_compile_config())
    archives = [model_to_bytes(stage) for stage in stages]
    optimizer = keras.optimizers.serialize(model.optimizer)
    modules = [
        RemoteModule(model_from_bytes(archive), optimizer, first=number == 0)
        for number, archive in enumerate(archives[:-1])
    ]
    layout = FullModelLayout(weight_layout(whole), tuple(places(whole, each) for each in stages))

    def build(group):
        last = model_from_bytes(archives[-1])
        return PlacedEngine(last, layout, group, micro_batches, on_waiting=told)

    return engine_of(build, modules, [f"stage {n}" for n in range(len(modules))], limits, dies)


def towers_engine(archive, names, limits=PATIENT, dies=None):
    """The engine of a model with these towers."""
    import keras

    def parts():
        model = model_from_bytes(archive)
        return model, [model.get_layer(name) for name in names]

    modules = []
    for number in range(1, len(names)):
        model, towers = parts()
        optimizer = keras.optimizers.serialize(model.optimizer)
        modules.append(RemoteModule(towers[number], optimizer, first=True))

    def build(group):
        model, towers = parts()
        return TowersEngine(model, towers, model.get_layer("head"), group)

    numbers = range(1, len(names))
    return engine_of(build, modules, [f"tower {n}" for n in numbers], limits, dies)
