"""What the tasks of a group build: the engine of the master, and what each device computes with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from distkeras_grid.engine.keras_model import model_from_bytes, weight_layout
from distkeras_grid.model_parallel.device_group import DeviceGroup, GroupEngine
from distkeras_grid.model_parallel.job import DriverCaller, allow_waiting_operations
from distkeras_grid.model_parallel.rpc import Module
from distkeras_grid.model_parallel.time_model import Layers, SplitPlan
from distkeras_grid.worker.task import WorkerPlan, engine_options

if TYPE_CHECKING:
    from distkeras_grid.model_parallel.parts_engine import FullModelLayout


def _compiled(worker: WorkerPlan, archive: bytes = b"") -> Any:
    """Return the master's model."""
    from distkeras_grid.engine.compile_settings import compile_model

    model = model_from_bytes(archive or worker.model, worker.custom_objects)
    compile_model(model)
    return model


def split_engine(
    layers: Layers, worker: WorkerPlan, group: DeviceGroup, driver: DriverCaller
) -> Any:
    """Return the engine of `ConvolutionSplit`: measure the devices, and divide what pays.

    Without a layer that pays, the devices end, and the model is trained as it is.
    """
    from distkeras_grid.engine.registry import build_engine, current_backend
    from distkeras_grid.model_parallel.convolution_finder import find_convolutions
    from distkeras_grid.model_parallel.devices import Devices
    from distkeras_grid.model_parallel.engine import DividedEngine

    model, options, spec = _compiled(worker), engine_options(worker), worker.spec
    convolutions = find_convolutions(model)
    described = [layer for _, layer in convolutions.layers.values()]
    # Operations that wait for the last gradients must not occupy the thread of the others.
    allow_waiting_operations(spec.limits.threads + len(described))
    devices = Devices(described, group, spec.batch_size, layers)
    group.each("open", layers=[layer.to_json() for layer in described])

    def report(plan: SplitPlan) -> None:
        driver.report(plan.table(), plan.shares)
        if not plan.shares:
            group.release()

    with group.watched():
        plan = devices.measure()
    if not plan.shares:
        report(plan)
        return build_engine(current_backend(), model, **options)
    divided = [convolutions.layers[name] for name in plan.shares]
    return GroupEngine(DividedEngine(model, divided, devices, report, **options), group)


def split_module(*_: Any) -> Module:
    """Return what a device of `ConvolutionSplit` computes with."""
    from distkeras_grid.model_parallel.device import ConvolutionModule

    return ConvolutionModule()


def towers_engine(
    names: Sequence[str],
    worker: WorkerPlan,
    group: DeviceGroup,
    driver: DriverCaller,  # noqa: ARG001
) -> Any:
    """Return the engine of `Towers`; `names` of the towers and the master in the whole model."""
    import keras

    from distkeras_grid.engine.tensorflow import TensorFlowEngine
    from distkeras_grid.model_parallel.parts_engine import FullModelLayout, PartsEngine, places
    from distkeras_grid.model_parallel.towers_engine import local_model

    # Operations that wait for the other towers must not occupy the thread of the master's own.
    allow_waiting_operations(worker.spec.limits.threads + group.count)
    model, options = _compiled(worker), engine_options(worker)
    *towers, master = [model.get_layer(name) for name in names]
    with keras.saving.custom_object_scope(dict(worker.custom_objects)):
        local, own = local_model(model, towers, master, group)
    others = [places(model, tower) for tower in towers[1:]]
    whole = FullModelLayout(weight_layout(model), (*others, own))
    engine = TensorFlowEngine(local, **{**options, "jit": False})
    return PartsEngine(engine, group, [f"tower {number}" for number in group.others], whole)


def tower_module(
    names: Sequence[str],
    worker: WorkerPlan,
    number: int,
    driver: DriverCaller,  # noqa: ARG001
) -> Module:
    """Return a tower."""
    import keras

    from distkeras_grid.model_parallel.remote_module import RemoteModule
    from distkeras_grid.model_parallel.tower_model import standalone_copy

    model, objects = model_from_bytes(worker.model, worker.custom_objects), worker.custom_objects
    # Copies are built from descriptions, which contain only the names of the user's own classes.
    with keras.saving.custom_object_scope(dict(objects)):
        tower = standalone_copy(model.get_layer(names[number]))
    optimizer = keras.optimizers.serialize(model.optimizer)
    return RemoteModule(tower, optimizer, objects, first=True)


def placed_engine(
    whole: FullModelLayout,
    micro_batches: int,
    worker: WorkerPlan,
    group: DeviceGroup,
    driver: DriverCaller,
) -> Any:
    """Return the engine of `PlacedLayers`, which trains the last stage."""
    from distkeras_grid.model_parallel.parts_engine import PartsEngine
    from distkeras_grid.model_parallel.placed_engine import PlacedEngine

    options = engine_options(worker)
    # Of the model's input, which is the first stage's.
    (scaling,) = options.pop("scaling")
    last = _compiled(worker, driver.part())
    engine = PlacedEngine(last, group, micro_batches, scaling=scaling, **options)
    return PartsEngine(engine, group, [f"stage {number - 1}" for number in group.others], whole)


def stage_module(
    optimizer: dict[str, Any], worker: WorkerPlan, number: int, driver: DriverCaller
) -> Module:
    """Return a stage; no task receives the model of another one."""
    from distkeras_grid.model_parallel.remote_module import RemoteModule

    stage = model_from_bytes(driver.part(), worker.custom_objects)
    return RemoteModule(stage, optimizer, worker.custom_objects, first=number == 1)
