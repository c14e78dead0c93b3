"""Text about a run: its description for ``run.json``, and the lines that announce it."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from distkeras_grid.spark.interpreters import package_versions, training_packages
from distkeras_grid.trainers.defaults import CommunicationWindow

if TYPE_CHECKING:
    from distkeras_grid.checkpoints import Driver
    from distkeras_grid.history import History
    from distkeras_grid.rules import Rule
    from distkeras_grid.spec import RunSpec


def describe_run(
    run: str,
    spec: RunSpec,
    callbacks: Iterable[Any],
    master: str,
    driver: Driver,
    custom_objects: Iterable[str] = (),
    data: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the description of a run, as JSON values."""
    return {
        "run": run,
        "master": master,
        "driver": msgspec.to_builtins(driver),
        "spec": spec.to_json(),
        "data_version": data,
        "callbacks": [f"{type(each).__module__}.{type(each).__qualname__}" for each in callbacks],
        "custom_objects": sorted(custom_objects),
        "versions": {
            "python": platform.python_version(),
            **package_versions(
                ("distkeras_grid", "pyspark", *training_packages(spec.algorithm.backend))
            ),
        },
    }


def headline_of(spec: RunSpec, rule: Rule, window: CommunicationWindow) -> str:
    """Return the line to show before a run, so that no default is a surprise."""
    workers = f"{spec.workers} workers" if spec.workers > 1 else "1 worker"
    batches = f"batch {spec.batch_size}"
    if spec.workers > 1:
        batches += f" each, {spec.batch_size * spec.workers} together"
    way = "each way" if rule.traits.answers else "to the driver"
    if spec.compression:
        way += " before compression"
    numbers = "".join(f", {name} {value:g}" for name, value in rule.parameters().items())
    return (
        f"{spec.algorithm.trainer}: {spec.rows} rows, {workers}, {batches}, "
        f"exchange {window} "
        f"({spec.size * 4 / 1e6:.3g} MB {way}){numbers}"
    )


def choices(window: CommunicationWindow, spec: RunSpec) -> list[str]:
    """Return lines about what was chosen for the user, and about the quorum."""
    lines = [window.reason] if window.reason else []
    if spec.algorithm.quorum < 1:
        needed = spec.quorum_of(spec.workers)
        lines.append(
            f"a round waits for {needed} of {spec.workers} workers "
            f"(quorum {spec.algorithm.quorum:g})"
        )
    return lines


def compression_sentence(history: History, size: int) -> str:
    """Return a sentence about the bytes that compression has saved; `size`: scalars in a vector."""
    moved = sum(record.bytes_up + record.bytes_down for record in history.records)
    # Uncompressed a scalar has four bytes, up and down.
    plain = 8 * size * len(history.records)
    return f"compression moved {moved / 1e6:.3g} MB instead of {plain / 1e6:.3g} MB"
