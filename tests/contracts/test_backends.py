"""Keras on JAX and on PyTorch: the tests of engines and runs once more, in processes of their own.

A process has one backend of Keras, so pytest is started again, where needed by another interpreter.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.engines import interpreter_with

pytestmark = [pytest.mark.spark, pytest.mark.tensorflow]

HERE = Path(__file__).parent.parent
ENGINE = "distkeras_grid/engine"
TRAINING = "distkeras_grid/trainers/test_training.py"
OTHERS = ("jax", "torch")

#: A layer that waits calls TensorFlow. Where loss and softmax are two steps, Keras clips the
#: probabilities, so rows that are far too large have no gradient and spoil nothing. Keras'
#: IntegerLookup is made of TensorFlow and of 64 bits.
ELSEWHERE = "not quorum_drops and not poisoned and not IntegerLookup"
#: A dropout with a seed reads it in Python, so PyTorch cannot record it, which jit=True asks for;
#: and one test asks TensorFlow how many threads it has.
WITHOUT = {
    "jax": ELSEWHERE,
    "torch": f"{ELSEWHERE} and not (same_bits_again and True) and not threads_are_in_force",
}


def run_on(backend: str, folder: Path, *arguments: str, seconds: float) -> None:
    python = interpreter_with(backend)
    if python is None:
        pytest.skip(f"{backend} is not installed (make {backend})")
    environment = {
        **os.environ,
        "KERAS_BACKEND": backend,
        "PYSPARK_PYTHON": python,
        "PYSPARK_DRIVER_PYTHON": python,
    }
    # With --basetemp in it, the other pytest would delete the files of this one.
    environment.pop("PYTEST_ADDOPTS", None)
    options = ["-q", "-m", "", "-p", "no:cacheprovider", f"--basetemp={folder}"]
    ended = subprocess.run(
        [python, "-m", "pytest", *options, *arguments],
        env=environment,
        cwd=HERE.parent,
        capture_output=True,
        text=True,
        check=False,
        timeout=seconds,
    )
    assert ended.returncode == 0, ended.stdout[-8000:] + ended.stderr[-2000:]


@pytest.mark.full
@pytest.mark.parametrize("backend", OTHERS)
def test_one_worker_equals_fit(backend, tmp_path):
    simulated = HERE / "distkeras_grid/trainers/test_simulation.py"
    run_on(backend, tmp_path, str(simulated), "-k", "S1", seconds=600)


@pytest.mark.full
@pytest.mark.parametrize("backend", OTHERS)
@pytest.mark.parametrize(
    "files",
    [
        ("contracts/test_engines.py",),
        tuple(f"{ENGINE}/test_{name}.py" for name in ("keras_engine", "metric_state", "torch")),
        (f"{ENGINE}/test_local_optimizers.py", f"{ENGINE}/test_schedules.py"),
        (
            *(
                f"{ENGINE}/test_{name}.py"
                for name in ("combination", "keras_model", "model_loader")
            ),
            "distkeras_grid/simulation/test_shared_engine.py",
            "distkeras_grid/worker/test_worker_state.py",
        ),
        (
            TRAINING,
            "distkeras_grid/inference/test_predictor.py",
            "distkeras_grid/inference/test_recalibration.py",
        ),
    ],
    ids=["contract", "engine", "steps", "state", "runs"],
)
def test_the_suites_of_engines_and_runs(backend, files, tmp_path):
    names = [str(HERE / name) for name in files]
    run_on(backend, tmp_path, *names, "-k", WITHOUT[backend], seconds=3000)
