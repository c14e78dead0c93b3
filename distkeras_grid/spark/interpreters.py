"""Checks of the executors: their interpreter, their packages and the connection to the driver."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from distkeras_grid.engine.registry import VARIABLE, backend_named
from distkeras_grid.errors import EnvironmentMismatchError, ServerUnreachableError
from distkeras_grid.parameter_server.settings import BindAddress
from distkeras_grid.spark.addresses import open_for_probe
from distkeras_grid.spark.session import task_slots
from distkeras_grid.spark.worker_jobs import spark_reason

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# What a training task imports. The versions must be those of the driver; otherwise the code that
# computes weights would differ from the code that evaluates them.
TRAINING_PACKAGES = ("numpy", "keras", "pyarrow")
TILING_PACKAGES = (
    "numpy",
    "opencv-python-headless",
    "pillow",
    "pyarrow",
    "tifffile",
    "imagecodecs",
)
# Builds of one package under several names. The first one that is installed is taken.
ALIASES = {
    "tensorflow": ("tensorflow", "tensorflow-cpu", "tensorflow-intel", "tensorflow-macos"),
    "opencv-python-headless": ("opencv-python-headless", "opencv-python", "opencv-contrib-python"),
}


def training_packages(backend: str) -> tuple[str, ...]:
    """Return what a training task imports with a backend of Keras; see `BACKENDS`."""
    return (*TRAINING_PACKAGES, *backend_named(backend).packages)


def ship_backend(spark: SparkSession, backend: str) -> None:
    """Let the Python processes that Spark starts from now on run Keras on the driver's backend.

    Spark sends these variables with each task. It gives tasks only processes that were started with
    the same ones, so the variable is there before any module of the user's imports Keras.
    """
    spark.sparkContext.environment[VARIABLE] = backend


def package_versions(names: tuple[str, ...]) -> dict[str, str | None]:
    """Return the installed version of each package, None if it is missing, without imports."""
    versions = _describe_driver(names)["packages"]
    # In YARN's cluster mode PySpark and this package are archives, which have no metadata.
    return {
        name: versions[name] or getattr(sys.modules.get(name), "__version__", None)
        for name in names
    }


def _describe_driver(names: tuple[str, ...]) -> dict[str, Any]:
    """Return what executors answer, for the interpreter of this driver."""
    answer: dict[str, Any] = json.loads(next(_probe(names, None)(iter(()))))
    return answer


_CHECKED: dict[tuple[str, tuple[str, ...], BindAddress | None], list[dict[str, Any]]] = {}


def check_executors(
    spark: SparkSession,
    names: tuple[str, ...],
    place: BindAddress | None = None,
) -> list[dict[str, Any]]:
    """Refuse executors that lack a package, have another version, or do not reach the driver.

    This is one small job for each session, list of packages and place. Its function is pickled by
    value, so executors without the project can still answer.

    `names`: packages whose versions must be those of the driver.
    `place`: where the parameter server is going to listen. Executors must reach it.
    """
    key = (spark.sparkContext.applicationId, names, place)
    if key in _CHECKED:
        return _CHECKED[key]
    mine = _describe_driver(names)
    mine["packages"] |= package_versions(names)
    missing = [package for package, version in mine["packages"].items() if version is None]
    if missing:
        raise EnvironmentMismatchError(
            f"The driver's interpreter {mine['executable']} lacks {', '.join(missing)}. Install "
            "them: pip install 'distkeras_grid[tensorflow]', or [jax], or [torch]."
        )
    with nullcontext() if place is None else open_for_probe(place) as server:
        target = None
        if place is not None and server is not None:
            target = (place.advertised_host, server.port)
        answers = _ask(spark, names, mine["python"], target)
        token = server.token if server is not None else None
    problems = [problem for answer in answers for problem in compare_interpreters(mine, answer)]
    if problems:
        raise EnvironmentMismatchError(" ".join(dict.fromkeys(problems)))
    if place is not None and target is not None:
        refuse_unreachable(place, target[1], token, answers)
    _CHECKED[key] = answers
    return answers


def refuse_unreachable(
    place: BindAddress, port: int, token: str | None, answers: list[dict[str, Any]]
) -> None:
    """Raise an error for executors that did not reach this driver."""
    failed = {a["host"]: a["received"] for a in answers if a["received"] != token}
    if not failed:
        return
    hosts = sorted(failed)
    shown = ", ".join(hosts[:3]) + (f" and {len(hosts) - 3} more" if len(hosts) > 3 else "")
    raise ServerUnreachableError(
        f"Executors on {shown} do not reach the parameter server at {place.advertised_host}:{port} "
        f"(the driver listens on {place.bind_host}:{port}): {failed[hosts[0]]}. Give an address of "
        "the driver that executors reach (master_host or spark.driver.host; behind NAT also "
        "spark.driver.bindAddress), or open the port for them: master_port fixes it, and "
        "spark.port.maxRetries says how many after it may be tried."
    )


def _ask(
    spark: SparkSession, names: tuple[str, ...], python: str, target: tuple[str, int] | None
) -> list[dict[str, Any]]:
    """Return what the executors' interpreters say of themselves, without repetitions."""
    slots = max(1, min(task_slots(spark), 64))
    # Rows of text and no Arrow: executors that lack pyarrow shall answer, too.
    tasks = spark.sparkContext.parallelize(range(slots), slots)
    try:
        answers = set(tasks.mapPartitions(_probe(names, target)).collect())
    except Exception as error:
        raise EnvironmentMismatchError(
            f"The executors' interpreter {os.environ.get('PYSPARK_PYTHON', 'python3')} cannot run "
            f"the code of this driver, whose interpreter is {sys.executable} (Python {python}). "
            f"Received: {spark_reason(error)} Set spark.pyspark.python (PYSPARK_PYTHON) to an "
            "interpreter of the same version with the same packages."
        ) from error
    return [json.loads(text) for text in sorted(answers)]


def _probe(names: tuple[str, ...], target: tuple[str, int] | None) -> Any:
    """Return the probe. It is self-contained: unpickling it imports nothing of the project."""
    aliases = {name: ALIASES.get(name, (name,)) for name in names}

    def probe(_rows: Iterator[int]) -> Iterator[str]:
        import importlib
        import json
        import platform
        import socket
        import sys
        from contextlib import suppress
        from importlib import metadata

        packages: dict[str, str | None] = {}
        for name, choices in aliases.items():
            packages[name] = None
            for choice in choices:
                try:
                    packages[name] = metadata.version(choice)
                    break
                except metadata.PackageNotFoundError:
                    continue
        packages["distkeras_grid"] = None
        with suppress(ImportError):
            # It may have been sent as an archive (--py-files), without metadata.
            packages["distkeras_grid"] = importlib.import_module("distkeras_grid").__version__
        received = None
        if target is not None:
            try:
                with socket.create_connection(target, timeout=5.0) as stream:
                    received = stream.makefile().read(32) or "another program answers there"
            except (OSError, ValueError) as error:
                received = f"{error} ({type(error).__name__})"
        answer = {
            "executable": sys.executable,
            "host": platform.node(),
            "python": ".".join(platform.python_version_tuple()[:2]),
            "packages": packages,
            "received": received,
        }
        yield json.dumps(answer)

    probe.__module__ = "__main__"  # cloudpickle pickles functions of __main__ by value
    return probe


def compare_interpreters(driver: dict[str, Any], executor: dict[str, Any]) -> list[str]:
    """Return one sentence for each difference that matters between driver and executor."""
    here, there = driver["executable"], executor["executable"]
    where = f"Executors on {executor['host']} run {there}"
    problems = []
    if driver["python"] != executor["python"]:
        problems.append(
            f"{where} (Python {executor['python']}); the driver runs {here} (Python "
            f"{driver['python']}). Both must be the same: set spark.pyspark.python."
        )
    for name, version in executor["packages"].items():
        mine = driver["packages"].get(name, version)
        if version is None:
            problems.append(
                f"{where}, which lacks {name}; the driver runs {here}. Install it there, or point "
                "spark.pyspark.python (PYSPARK_PYTHON) to an interpreter that has it."
            )
        elif version != mine:
            problems.append(
                f"{where} with {name} {version}; the driver runs {here} with {name} {mine}. "
                "Install the same version on both."
            )
    return problems
