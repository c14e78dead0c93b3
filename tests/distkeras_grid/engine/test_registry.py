import json

import pytest

from distkeras_grid.engine.registry import BACKENDS, configured_backend, use_backend
from distkeras_grid.errors import EnvironmentMismatchError
from tests.engines import interpreter_with, keras
from tests.processes import python_output


def test_the_backend_is_known_without_keras(tmp_path):
    code = """
import sys
from distkeras_grid.engine.registry import configured_backend
print(configured_backend(), "keras" in sys.modules)
"""
    nowhere = {"KERAS_BACKEND": "", "KERAS_HOME": str(tmp_path)}
    assert python_output(code, **nowhere) == ["tensorflow", "False"]
    (tmp_path / "keras.json").write_text(json.dumps({"backend": "jax"}))
    assert python_output(code, **nowhere) == ["jax", "False"]
    assert python_output(code, **{**nowhere, "KERAS_BACKEND": "torch"}) == ["torch", "False"]


@pytest.mark.tensorflow
def test_it_is_the_one_that_keras_runs_on_once_it_runs(monkeypatch):
    monkeypatch.setenv("KERAS_BACKEND", "another")
    assert configured_backend() == keras.backend.backend()


@pytest.mark.tensorflow
def test_a_process_of_another_backend_is_refused():
    other = next(name for name in BACKENDS if name != keras.backend.backend())
    with pytest.raises(EnvironmentMismatchError, match=f"runs on {other}"):
        use_backend(other, 1)


@pytest.mark.full
@pytest.mark.tensorflow
def test_a_fresh_process_takes_the_backend_and_the_threads_of_the_run():
    code = """
import os
from distkeras_grid.engine.registry import count_gpus, use_backend
in_force = use_backend("jax", 1)
import keras
import jax
keras.ops.ones(3)
again = use_backend("jax", 2)
print(keras.backend.backend(), in_force, again, os.environ["PJRT_NPROC"], count_gpus("jax"))
"""
    assert python_output(code, KERAS_BACKEND="tensorflow") == ["jax", "1", "1", "1", "0"]


@pytest.mark.tensorflow
def test_a_process_in_which_jax_runs_keeps_its_threads():
    code = """
import jax
jax.numpy.ones(3)
from distkeras_grid.engine.registry import use_backend
print(use_backend("jax", 1))
"""
    assert python_output(code) == ["0"]


@pytest.mark.tensorflow
def test_a_process_in_which_pytorch_runs_takes_other_threads():
    if (python := interpreter_with("torch")) is None:
        pytest.skip("PyTorch is not installed (make torch)")
    code = """
from distkeras_grid.engine.registry import count_gpus, use_backend
told = [use_backend("torch", 1)]
import keras
import torch
keras.ops.ones((512, 512)) @ keras.ops.ones((512, 512))
told += [use_backend("torch", 2), torch.get_num_threads(), count_gpus("torch")]
print(keras.backend.backend(), *told)
"""
    environment = {"KERAS_BACKEND": "tensorflow", "CUDA_VISIBLE_DEVICES": ""}
    assert python_output(code, python, **environment) == ["torch", "1", "2", "2", "0"]
