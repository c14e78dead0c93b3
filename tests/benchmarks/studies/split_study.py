"""The study of divided convolutions: what was measured here, and what the time model says beyond.

Marques, Falcao and Alexandre (2018) trained nets of two convolutions on CIFAR-10 and varied their
kernels, the batch, the bandwidth, and the number and the speed of the devices. They report 3.28
times the speed of one device with four CPUs, and 2.45 with three GPUs. Their text gives no sizes of
kernels; 5x5 is assumed here.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

from distkeras_grid.errors import EmptyDataError
from distkeras_grid.model_parallel.geometry import Convolution
from distkeras_grid.model_parallel.time_model import (
    Layers,
    NetworkLink,
    SplitPlan,
    UnitTime,
    plan_layers,
)
from tests.benchmarks.studies.split_runs import SplitResult, SplitSetup
from tests.benchmarks.tables import print_table

#: Kernels of the two convolutions, as published.
SIZES = ((50, 500), (150, 800), (300, 1000), (500, 1500))
#: Published speed-ups, by the number of devices.
PUBLISHED_CPUS, PUBLISHED_GPUS = (4, 3.28), (3, 2.45)
#: Bytes a second of common networks.
NETWORKS = {"1 Gbit/s": 125e6, "10 Gbit/s": 1.25e9, "40 Gbit/s": 5e9, "100 Gbit/s": 12.5e9}
#: Seconds of one way through a switched network.
LATENCY = 1e-4
#: Operations a second of a GPU of those years in convolutions, assumed: none was available here.
GPU_RATE = 2e12
USUAL_BATCH = 128


@dataclass(frozen=True)
class Calibration:
    """How fast a core of this machine is."""

    # Operations a second in the first and in the second convolution, forward and backward
    rates: tuple[float, float]
    rest: float  # Seconds for each number that the two convolutions put out, for everything else


def layers_of(setup: SplitSetup) -> tuple[Convolution, Convolution]:
    """Return the convolutions of a setup."""
    height, width, channels = setup.shape
    first, second = setup.kernels
    one = Convolution(
        name="first",
        kind="convolution",
        input_shape=(height, width, channels),
        kernel_size=(5, 5),
        channels=first,
        strides=(1, 1),
        dilation=(1, 1),
        padding="same",
        input_gradient=False,
    )
    two = msgspec.structs.replace(
        one,
        name="second",
        input_shape=(height // 2, width // 2, first),
        channels=second,
        input_gradient=True,
    )
    return one, two


def operations(layer: Convolution, batch: int) -> tuple[int, int]:
    """Return the floating-point operations of a layer, forward and backward."""
    once = 2 * layer.multiplications(batch, layer.units)
    return once, once * (2 if layer.input_gradient else 1)


def calibrate(results: Sequence[SplitResult]) -> Calibration:
    """Return how fast this machine is, as the median of what was measured."""
    if not results:
        raise EmptyDataError("The time model is calibrated on real runs. Received: none.")
    first, second = (
        statistics.median(_rate(result, number) for result in results) for number in range(2)
    )
    rest = statistics.median(r.plan.rest / _outputs(r.setup) for r in results)
    return Calibration((first, second), rest)


def _rate(result: SplitResult, number: int) -> float:
    layer = layers_of(result.setup)[number]
    return sum(operations(layer, result.setup.batch)) / result.plan.layers[number].whole


def predict(
    setup: SplitSetup, calibration: Calibration, link: NetworkLink, *, always: bool = False
) -> SplitPlan:
    """Return what the time model says; `always` divides both layers, as in the real runs."""
    layers = layers_of(setup)
    paces = {
        layer.name: [
            _pace(layer, setup.batch, rate / slowdown) for slowdown in (1.0, *setup.slowdowns)
        ]
        for layer, rate in zip(layers, calibration.rates, strict=True)
    }
    rest = calibration.rest * _outputs(setup)
    which: Layers = "all" if always else "auto"
    return plan_layers(layers, setup.batch, paces, link, which=which, rest=rest)


def errors(results: Sequence[SplitResult]) -> list[float]:
    """Return the relative errors of the time model, each calibrated on the other runs."""
    found = []
    for number, result in enumerate(results):
        others = [*results[:number], *results[number + 1 :]]
        # Of one net there are several runs; none of them may be known.
        others = [other for other in others if other.setup.kernels != result.setup.kernels]
        if others:
            plan = predict(result.setup, calibrate(others), result.link, always=True)
            found.append(plan.divided / result.divided - 1)
    return found


def speed_up(plan: SplitPlan) -> float:
    """Return how many times as fast a plan is as one of its devices alone."""
    return plan.whole / plan.divided


def print_study(results: Sequence[SplitResult], machine: str, data: str) -> None:
    """Print what was measured, and what the time model says of other devices and networks."""
    calibration = calibrate(results)
    print(f"\nSeconds a batch on {machine}, with {data}; master and device have a core each")
    print_table(
        ("kernels", "batch", "device", "one core", "all cores", "divided", "predicted", "error"),
        [
            (
                *(":".join(map(str, r.setup.kernels)), r.setup.batch),
                " ".join(f"1/{slowdown:g}" for slowdown in r.setup.slowdowns),
                *(f"{s:.3f}" for s in (r.one_core, r.all_cores, r.divided, r.plan.divided)),
                f"{r.error:+.0%}",
            )
            for r in results
        ],
    )
    found = errors(results)
    told = f"off by {_percent(found)} on nets that it has not seen" if found else "error unknown"
    print(f"\nTime model, {told}: times as fast as one device, a batch of {USUAL_BATCH}")
    first, second = (rate / 1e9 for rate in calibration.rates)
    print(f"CPUs of {first:.1f} and {second:.1f} GFLOP/s in the two convolutions")
    print_table(("devices", *NETWORKS), _beyond(calibration))
    for devices, published in (PUBLISHED_CPUS, PUBLISHED_GPUS):
        print(f"published, other machines and networks: {devices} devices {published}")


def _beyond(calibration: Calibration) -> Iterator[tuple[str, ...]]:
    links = [NetworkLink(bandwidth=each, latency=LATENCY) for each in NETWORKS.values()]
    quick = Calibration((GPU_RATE,) * 2, calibration.rest * calibration.rates[1] / GPU_RATE)
    gpus = f"GPUs of {GPU_RATE / 1e12:g} TFLOP/s (assumed)"
    for name, speed, count, sizes in (
        ("CPUs", calibration, PUBLISHED_CPUS[0], SIZES),
        (gpus, quick, PUBLISHED_GPUS[0], SIZES[-1:]),
    ):
        for kernels in sizes:
            setup = SplitSetup(kernels, USUAL_BATCH, (1.0,) * (count - 1))
            ups = [f"{speed_up(predict(setup, speed, link)):.2f}" for link in links]
            yield (f"{count} {name}, {kernels[0]}:{kernels[1]} kernels", *ups)


def _percent(found: Sequence[float]) -> str:
    sizes = [abs(error) for error in found]
    return f"{statistics.median(sizes):.0%} (median) and at most {max(sizes):.0%}"


def _outputs(setup: SplitSetup) -> int:
    height, width, _ = setup.shape
    first, second = setup.kernels
    return setup.batch * (height * width * first + height * width // 4 * second)


def _pace(layer: Convolution, batch: int, rate: float) -> UnitTime:
    forward, backward = operations(layer, batch)
    return UnitTime(forward=forward / rate / layer.units, backward=backward / rate / layer.units)
