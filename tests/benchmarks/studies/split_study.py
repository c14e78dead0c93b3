"""The study of divided convolutions: what was measured here, and what the time model says beyond.

Marques, Falcao and Alexandre (2018) trained nets of two convolutions on CIFAR-10 and varied their
kernels, the batch, the bandwidth, and the number and the speed of the devices. They report 3.28
times the speed of one device with four CPUs, and 2.45 with three GPUs. Their text gives no sizes of
kernels; 5x5 is assumed here.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

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
from distkeras_grid.pages import PageSection, write_page
from distkeras_grid.plots.style import add_legend, color_of, new_figure
from tests.benchmarks.studies.split_runs import SplitResult, SplitSetup

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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
#: Devices, batches and relative speeds of the pictures.
DEVICES, BATCHES, SPEEDS = range(1, 9), (16, 32, 64, 128, 256, 512), (0.25, 0.5, 1.0, 2.0, 4.0)
#: What is kept while another thing is varied.
USUAL_DEVICES, USUAL_BATCH, USUAL_NETWORK = 4, 128, "10 Gbit/s"


@dataclass(frozen=True)
class Calibration:
    """How fast a core of this machine is.

    Parameters
    ----------
    rates : tuple of float
        Operations a second in the first and in the second convolution, forward and backward.
    rest : float
        Seconds for each number that the two convolutions put out, for everything else.
    """

    rates: tuple[float, float]
    rest: float


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
    """Return how fast this machine is, as the median of what was measured.

    Parameters
    ----------
    results : sequence of SplitResult
        At least one.

    Raises
    ------
    EmptyDataError
        If there is none.
    """
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
    """Return what the time model says of a setup.

    Parameters
    ----------
    setup : SplitSetup
        The net, the batch and the devices.
    calibration : Calibration
        The master's; the others are slower by the setup's factors.
    link : Link
        The master's.
    always : bool, default False
        Whether both layers are divided even if that is slower, as in the real runs.
    """
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


def speed_up(plan: SplitPlan, fastest: float = 1.0) -> float:
    """Return how many times as fast a plan is as the fastest of its devices alone."""
    return plan.whole / max(1.0, fastest) / plan.divided


def write_study(folder: Path, results: Sequence[SplitResult], machine: str, data: str) -> Path:
    """Write the pictures and the page of the study.

    Parameters
    ----------
    folder : Path
        A local folder, which exists.
    results : sequence of SplitResult
        The real runs.
    machine, data : str
        What they ran on, and with what.

    Returns
    -------
    Path
        The page.
    """
    calibration = calibrate(results)
    pictures: list[tuple[str, str, Callable[[Axes], None]]] = [
        ("devices", "Number of devices", lambda axes: _by_devices(axes, calibration)),
        ("bandwidth", "Bandwidth", lambda axes: _by_bandwidth(axes, calibration)),
        ("batch", "Batch", lambda axes: _by_batch(axes, calibration)),
        ("speed", "Relative speed", lambda axes: _by_speed(axes, calibration)),
    ]
    sections = [_measured(results, machine, data), _model(results, calibration)]
    for name, title, draw in pictures:
        figure, axes = new_figure()
        draw(axes)
        axes.set_title(title)
        axes.set_ylabel("times as fast as the fastest device alone")
        axes.set_ylim(bottom=0)
        add_legend(figure, axes)
        figure.savefig(folder / f"{name}.png")
        sections.append(PageSection(title, _TEXTS[name], image=f"{name}.png"))
    return write_page(folder, "Convolutions over several devices", sections)


_TEXTS = {
    "devices": f"Time model: equal CPUs as this machine's core, a batch of {USUAL_BATCH}, "
    f"{USUAL_NETWORK}. The cross is the published speed-up of four CPUs, the star that of three "
    "GPUs.",
    "bandwidth": f"Time model: {USUAL_DEVICES} equal CPUs, a batch of {USUAL_BATCH}.",
    "batch": f"Time model: {USUAL_DEVICES} equal CPUs, {USUAL_NETWORK}.",
    "speed": f"Time model: three devices that are so many times as fast as the master, a batch of "
    f"{USUAL_BATCH}, {USUAL_NETWORK}.",
}


def _by_devices(axes: Axes, calibration: Calibration) -> None:
    link = NetworkLink(bandwidth=NETWORKS[USUAL_NETWORK], latency=LATENCY)
    for kernels, setup in _usual():
        ups = [
            speed_up(predict(replace(setup, slowdowns=(1.0,) * (n - 1)), calibration, link))
            for n in DEVICES
        ]
        _line(axes, DEVICES, ups, kernels)
    axes.plot(*PUBLISHED_CPUS, "x", color="black", markersize=12, label="published, four CPUs")
    axes.plot(*PUBLISHED_GPUS, "*", color="black", markersize=12, label="published, three GPUs")
    axes.set_xlabel("devices, the master included")


def _by_bandwidth(axes: Axes, calibration: Calibration) -> None:
    for kernels, setup in _usual():
        ups = [
            speed_up(predict(setup, calibration, NetworkLink(bandwidth=bandwidth, latency=LATENCY)))
            for bandwidth in NETWORKS.values()
        ]
        _line(axes, range(len(NETWORKS)), ups, kernels)
    axes.set_xticks(range(len(NETWORKS)), list(NETWORKS))
    axes.set_xlabel("network")


def _by_batch(axes: Axes, calibration: Calibration) -> None:
    link = NetworkLink(bandwidth=NETWORKS[USUAL_NETWORK], latency=LATENCY)
    for kernels, setup in _usual():
        ups = [speed_up(predict(replace(setup, batch=b), calibration, link)) for b in BATCHES]
        _line(axes, BATCHES, ups, kernels)
    axes.set_xscale("log", base=2)
    axes.set_xlabel("rows of a batch")


def _by_speed(axes: Axes, calibration: Calibration) -> None:
    link = NetworkLink(bandwidth=NETWORKS[USUAL_NETWORK], latency=LATENCY)
    for kernels, setup in _usual():
        ups = []
        for speed in SPEEDS:
            unequal = replace(setup, slowdowns=(1 / speed,) * (USUAL_DEVICES - 1))
            ups.append(speed_up(predict(unequal, calibration, link), fastest=speed))
        _line(axes, SPEEDS, ups, kernels)
    axes.set_xscale("log", base=2)
    axes.set_xlabel("speed of the other devices, the master's is 1")


def _usual() -> Iterable[tuple[tuple[int, int], SplitSetup]]:
    for kernels in SIZES:
        yield kernels, SplitSetup(kernels, USUAL_BATCH, (1.0,) * (USUAL_DEVICES - 1))


def _line(axes: Axes, x: Iterable[float], y: Sequence[float], kernels: tuple[int, int]) -> None:
    number = SIZES.index(kernels)
    label = f"{kernels[0]}:{kernels[1]} kernels"
    axes.plot(list(x), y, "o-", color=color_of(number, len(SIZES)), label=label)


def _measured(results: Sequence[SplitResult], machine: str, data: str) -> PageSection:
    head = (
        *("kernels", "batch", "speed of the device", "one core [s]", "all cores [s]"),
        *("divided [s]", "predicted before [s]", "error"),
    )
    rows = [
        (
            ":".join(map(str, r.setup.kernels)),
            r.setup.batch,
            " ".join(f"1/{slowdown:g}" for slowdown in r.setup.slowdowns),
            *(f"{seconds:.3f}" for seconds in (r.one_core, r.all_cores, r.divided)),
            f"{r.plan.divided:.3f}",
            f"{r.error:+.0%}",
        )
        for r in results
    ]
    slower = sum(r.divided > r.all_cores for r in results)
    text = (
        f"Seconds a batch on {machine}, with {data}. The master and its device have a core each "
        "and talk through a Unix socket. One core and all cores train the whole model. In "
        f"{slower} of {len(results)} runs the divided model was slower than all cores: "
        "TensorFlow's own threads divide a convolution over cores without moving a byte."
    )
    return PageSection("Measured on this machine", text, [head, *rows])


def _model(results: Sequence[SplitResult], calibration: Calibration) -> PageSection:
    found = errors(results)
    told = (
        f"Calibrated on the runs of the other nets, it was off by {_percent(found)} for the "
        "divided batches above."
        if found
        else "Its error is not known, because only one net was measured."
    )
    link = NetworkLink(bandwidth=NETWORKS[USUAL_NETWORK], latency=LATENCY)
    cpus = predict(
        SplitSetup(SIZES[-1], USUAL_BATCH, (1.0,) * (PUBLISHED_CPUS[0] - 1)), calibration, link
    )
    faster = GPU_RATE / calibration.rates[1]
    quick = Calibration((GPU_RATE, GPU_RATE), calibration.rest / faster)
    gpus = predict(
        SplitSetup(SIZES[-1], USUAL_BATCH, (1.0,) * (PUBLISHED_GPUS[0] - 1)), quick, link
    )
    head = ("", "time model", "published")
    rows = [
        ("four CPUs, 500:1500", f"{speed_up(cpus):.2f}", PUBLISHED_CPUS[1]),
        (f"three GPUs of {GPU_RATE / 1e12:g} TFLOP/s (assumed), 500:1500",
         f"{speed_up(gpus):.2f}", PUBLISHED_GPUS[1]),
    ]  # fmt: skip
    text = (
        "The pictures below are the time model's: 5x5 kernels, pooling by 2, input 32x32x3. "
        f"It takes {calibration.rates[0] / 1e9:.1f} and {calibration.rates[1] / 1e9:.1f} "
        f"GFLOP/s for the two convolutions of a device. {told} The published figures are of other "
        "machines, networks and code, and do not check it. No GPU was available."
    )
    return PageSection("Beyond this machine", text, [head, *rows])


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
