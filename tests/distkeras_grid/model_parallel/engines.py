"""Engines whose devices are in threads of this process, behind real channels in memory."""

from __future__ import annotations

from contextlib import contextmanager

from distkeras_grid.engine.keras_model import model_from_bytes, model_to_bytes, weight_layout
from distkeras_grid.errors import LocalDiskError
from distkeras_grid.model_parallel.parts_engine import FullModelLayout, PartsEngine, places
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
        engine = PartsEngine(*build(group, names))
        engine.group, engine.modules = group, mortal
        try:
            yield engine
        finally:
            for module in mortal:
                module.over.set()


def placed_engine(model, names, micro_batches=3, limits=PATIENT, dies=None):
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

    def build(group, names):
        last = model_from_bytes(archives[-1])
        return PlacedEngine(last, group, micro_batches), group, names, layout

    return engine_of(build, modules, [f"stage {n}" for n in range(len(modules))], limits, dies)


def towers_engine(archive, names, limits=PATIENT, dies=None):
    """The engine of a model with these towers."""
    import keras

    from distkeras_grid.engine.tensorflow import TensorFlowEngine
    from distkeras_grid.model_parallel.towers_engine import local_model

    def parts():
        model = model_from_bytes(archive)
        return model, [model.get_layer(name) for name in names]

    modules = []
    for number in range(1, len(names)):
        model, towers = parts()
        optimizer = keras.optimizers.serialize(model.optimizer)
        modules.append(RemoteModule(towers[number], optimizer, first=True))

    def build(group, names):
        model, towers = parts()
        local, own = local_model(model, towers, model.get_layer("head"), group)
        others = (places(model, tower) for tower in towers[1:])
        layout = FullModelLayout(weight_layout(model), (*others, own))
        return TensorFlowEngine(local, jit=False), group, names, layout

    tower_names = [f"tower {n}" for n in range(1, len(names))]
    return engine_of(build, modules, tower_names, limits, dies)
