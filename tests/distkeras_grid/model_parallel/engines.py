"""Engines whose devices are in threads of this process, behind real channels in memory."""

from __future__ import annotations

from contextlib import contextmanager

from distkeras_grid.engine.keras_model import model_from_bytes, model_to_bytes
from distkeras_grid.errors import LocalDiskError
from distkeras_grid.model_parallel.device_group import GroupEngine
from distkeras_grid.model_parallel.parts_engine import FullModelLayout
from distkeras_grid.model_parallel.pipeline_partition import stages_of
from distkeras_grid.model_parallel.placed_engine import PlacedEngine
from distkeras_grid.model_parallel.remote_module import RemoteModule
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
    layout = FullModelLayout.of(whole, stages)

    def build(group):
        last = model_from_bytes(archives[-1])
        return PlacedEngine(last, layout, group, micro_batches, on_waiting=told)

    return engine_of(build, modules, [f"stage {n}" for n in range(len(modules))], limits, dies)


def towers_engine(archive, names, limits=PATIENT, dies=None):
    """The engine of a model with these towers."""
    import keras

    from distkeras_grid.model_parallel.towers_engine import TowersEngine, head_of

    def parts():
        model = model_from_bytes(archive)
        return model, [model.get_layer(name) for name in names]

    def module(number):
        model, towers = parts()
        return RemoteModule(towers[number], keras.optimizers.serialize(model.optimizer), first=True)

    def build(group):
        model, towers = parts()
        master = model.get_layer("head")
        group.host(module(0))
        whole = FullModelLayout.of(model, [*towers, master])
        return TowersEngine(head_of(model, towers, master), whole, group)

    numbers = range(len(names))
    modules = [module(number) for number in numbers[1:]]
    return engine_of(build, modules, [f"tower {n}" for n in numbers], limits, dies)
