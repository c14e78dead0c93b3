"""Real runs of divided convolutions on this machine: processes of one core each, without Spark.

Master and devices are processes that compute and talk as they do in Spark's tasks. A device can be
slowed down, to stand for a slower machine.
"""

from __future__ import annotations

import statistics
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from distkeras_grid.model_parallel.device import ConvolutionModule
from distkeras_grid.model_parallel.device_group import DeviceGroup
from distkeras_grid.model_parallel.devices import Devices
from distkeras_grid.model_parallel.rpc import Answers, serve
from distkeras_grid.model_parallel.time_model import NetworkLink, SplitPlan
from distkeras_grid.model_parallel.wire import HandshakeListener, connect
from distkeras_grid.parameter_server.auth import new_key
from distkeras_grid.parameter_server.settings import BindAddress, ServerAddress
from distkeras_grid.rows import RowBlock, aligned_empty
from distkeras_grid.spec import LimitsSpec
from tests.benchmarks.studies.processes import Side

#: Seconds that a measurement may take.
ANSWER_SECONDS = 1800.0
#: Measurements whose median counts.
REPEATS = 3


@dataclass(frozen=True)
class SplitSetup:
    """A net of two convolutions, and a batch."""

    kernels: tuple[int, int]  # Kernels of the first and of the second convolution
    batch: int  # Rows of a batch
    # For each device beside the master, how many times as long it takes as this machine's core
    slowdowns: tuple[float, ...] = ()
    shape: tuple[int, int, int] = (32, 32, 3)  # Shape of a row
    classes: int = 10  # Classes of the labels
    # Where `load_data` has put the rows; otherwise they are random numbers
    folder: Path | None = None

    @property
    def count(self) -> int:
        """Devices, the master included."""
        return 1 + len(self.slowdowns)


@dataclass(frozen=True)
class SplitResult:
    """Measured and predicted seconds of a batch."""

    setup: SplitSetup  # What was measured
    # The whole model in the window loop, on one core and on all cores of this machine
    one_core: float
    # The whole model in the window loop, on one core and on all cores of this machine
    all_cores: float
    divided: float  # The divided model: one core for the master and one for each device
    plan: SplitPlan  # As predicted before
    link: NetworkLink  # As measured before

    @property
    def error(self) -> float:
        """Relative error of the predicted time of the divided model."""
        return self.plan.divided / self.divided - 1


def network(setup: SplitSetup) -> Any:
    """Return the net of a setup, compiled: 5x5 kernels, pooling after each, and a dense layer."""
    import keras

    keras.utils.set_random_seed(0)
    first, second = setup.kernels
    layers = [
        keras.Input(setup.shape),
        keras.layers.Conv2D(first, 5, padding="same", activation="relu", name="first"),
        keras.layers.MaxPooling2D(),
        keras.layers.Conv2D(second, 5, padding="same", activation="relu", name="second"),
        keras.layers.MaxPooling2D(),
        keras.layers.Flatten(),
        keras.layers.Dense(setup.classes, activation="softmax"),
    ]
    model = keras.Sequential(layers)
    model.compile(keras.optimizers.SGD(0.01), "sparse_categorical_crossentropy")
    return model


def measure(setup: SplitSetup) -> SplitResult:
    """Measure a setup on this machine."""
    with Side(partial(_Whole, setup, 0), _environment()) as side:
        side.ask("seconds")
        all_cores = side.answer(ANSWER_SECONDS)
    key = new_key()
    with ExitStack() as stack:
        master = stack.enter_context(Side(partial(_Master, setup, key), _environment(threads=1)))
        master.ask("address")
        address = master.answer(ANSWER_SECONDS)
        for number, slowdown in enumerate(setup.slowdowns, start=1):
            build = partial(_Device, address, key, number, slowdown)
            stack.enter_context(Side(build, _environment(threads=1)))
        master.ask("measure")
        one_core, divided, plan, link = master.answer(ANSWER_SECONDS)
        master.ask("close")
        master.answer(ANSWER_SECONDS)
    return SplitResult(
        setup, one_core, all_cores, divided, SplitPlan.from_json(plan), NetworkLink.from_json(link)
    )


class _Whole:
    """The whole model in the window loop; `threads` of 0 are all cores."""

    def __init__(self, setup: SplitSetup, threads: int) -> None:
        from distkeras_grid.engine.process import prepare_process
        from distkeras_grid.engine.tensorflow import TensorFlowEngine

        if threads:
            prepare_process(threads)
        self._engine = TensorFlowEngine(network(setup), jit=False)
        self._block = _block(setup)
        self._engine.warm_up(self._block)

    def seconds(self) -> float:
        return _seconds(self._engine, self._block)


class _Master:
    """A master that waits for its devices, and measures them and the batch."""

    def __init__(self, setup: SplitSetup, key: bytes) -> None:
        from distkeras_grid.model_parallel.convolution_finder import find_convolutions

        self._whole = _Whole(setup, 1)
        self._setup = setup
        self._model = network(setup)
        self._found = find_convolutions(self._model)
        self._layers = [described for _, described in self._found.layers.values()]
        limits = LimitsSpec(start_timeout=ANSWER_SECONDS, round_timeout=ANSWER_SECONDS)
        self._group = DeviceGroup(setup.count, limits)
        self._gate = HandshakeListener(
            BindAddress("127.0.0.1", "127.0.0.1"), "study", key, self._group.admit
        )

    def address(self) -> ServerAddress:
        return self._gate.address

    def measure(self) -> tuple[float, float, dict[str, Any], dict[str, Any]]:
        from distkeras_grid.model_parallel.engine import DividedEngine

        self._group.wait_for_all()
        self._group.each("open", layers=[layer.to_json() for layer in self._layers])
        devices = Devices(self._layers, self._group, self._setup.batch, "all")
        devices.measure()
        layers = list(self._found.layers.values())
        engine = DividedEngine(self._model, layers, devices, lambda _: None)
        block = _block(self._setup)
        engine.warm_up(block)
        plan = devices.plan
        # A first one, so that all have the memory that they need.
        _seconds(engine, block, repeats=1)
        one_core, divided = self._whole.seconds(), _seconds(engine, block)
        return one_core, divided, plan.to_json(), devices.link.to_json()

    def close(self) -> None:
        self._group.__exit__(None)
        self._gate.__exit__()


class _Device:
    """A device that computes in a thread of its process."""

    def __init__(self, address: ServerAddress, key: bytes, number: int, slowdown: float) -> None:
        from distkeras_grid.engine.process import prepare_process

        prepare_process(1)
        channel = connect(address, "study", key, number, 60.0)
        build = partial(_SlowModule, slowdown)
        threading.Thread(target=serve, args=(channel, build), daemon=True).start()


class _SlowModule(ConvolutionModule):
    """A device each of whose computations takes `slowdown` times as long."""

    def __init__(self, slowdown: float) -> None:
        super().__init__()
        self._slowdown = slowdown

    def forward(self, *arrays: Any, **values: Any) -> Answers:
        yield from self._slowly(super().forward(*arrays, **values))

    def backward(self, *arrays: Any, **values: Any) -> Answers:
        yield from self._slowly(super().backward(*arrays, **values))

    def _slowly(self, answers: Answers) -> Answers:
        clock = time.perf_counter()
        for arrays in answers:
            time.sleep((self._slowdown - 1) * (time.perf_counter() - clock))
            yield arrays
            clock = time.perf_counter()


def _environment(threads: int | None = None) -> dict[str, str]:
    limits = {} if threads is None else {"OMP_NUM_THREADS": str(threads)}
    return {
        "KERAS_BACKEND": "tensorflow",
        "TF_ENABLE_ONEDNN_OPTS": "1",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "CUDA_VISIBLE_DEVICES": "-1",
        **limits,
    }


def _block(setup: SplitSetup) -> RowBlock:
    """Return one batch, of the rows or of random numbers."""
    x = aligned_empty((1, setup.batch, *setup.shape))
    y = np.zeros((1, setup.batch), np.int64)
    if setup.folder is None:
        random = np.random.default_rng(0)
        x[:] = random.random(x.shape, np.float32)
        y[:] = random.integers(0, setup.classes, y.shape)
    else:
        x[0] = np.load(setup.folder / "images.npy", mmap_mode="r")[: setup.batch] / np.float32(255)
        y[0] = np.load(setup.folder / "labels.npy")[: setup.batch]
    return RowBlock((x,), (y,))


def _seconds(engine: Any, block: RowBlock, repeats: int = REPEATS) -> float:
    """Return the median time of a batch."""
    before, after = engine.weights(), aligned_empty(engine.layout.size)
    taken = []
    for _ in range(repeats):
        clock = time.perf_counter()
        engine.run(before, [block], after)
        taken.append(time.perf_counter() - clock)
    return statistics.median(taken)
