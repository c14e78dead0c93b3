"""Keras on JAX: the tests of engines and runs once more, in processes with that backend.

A process has one backend of Keras, so pytest is started again.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.tensorflow]

HERE = Path(__file__).parent.parent
ENGINE = "distkeras_grid/engine"
TRAINING = "distkeras_grid/trainers/test_training.py"

#: A layer that waits calls TensorFlow. And where loss and softmax are two steps, Keras clips the
#: probabilities, so rows that are far too large have no gradient and spoil nothing.
WITHOUT = ("-k", "not quorum_drops and not poisoned")


def run_on_jax(*arguments: str, seconds: float) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-m", "", "-p", "no:cacheprovider", *arguments],
        env={**os.environ, "KERAS_BACKEND": "jax"},
        cwd=HERE.parent,
        capture_output=True,
        text=True,
        check=False,
        timeout=seconds,
    )
    assert ended.returncode == 0, ended.stdout[-8000:] + ended.stderr[-2000:]


def test_one_worker_equals_fit_and_two_learn():
    chosen = "S1 or (learns and DOWNPOUR)"
    run_on_jax(str(HERE / TRAINING), "-k", chosen, seconds=600)


@pytest.mark.full
@pytest.mark.parametrize(
    "files",
    [
        ("contracts/test_engines.py",),
        (f"{ENGINE}/test_keras_engine.py", f"{ENGINE}/test_several_outputs.py"),
        (f"{ENGINE}/test_local_steps.py", f"{ENGINE}/test_schedules.py"),
        (
            *(f"{ENGINE}/test_{name}.py" for name in ("combination", "keras_model", "loading")),
            "distkeras_grid/simulation/test_keras_learners.py",
            "distkeras_grid/worker/test_own_state.py",
            "distkeras_grid/worker/test_steps.py",
        ),
        (TRAINING, "distkeras_grid/inference/test_predictor.py", *WITHOUT),
    ],
    ids=["contract", "engine", "steps", "state", "runs"],
)
def test_the_suites_of_engines_and_runs(files):
    run_on_jax(
        *(str(HERE / name) if name.endswith(".py") else name for name in files), seconds=3000
    )
