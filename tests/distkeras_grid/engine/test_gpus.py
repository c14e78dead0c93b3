"""The GPUs of a worker, as far as they can be tested without one."""

import os
import sys
from types import SimpleNamespace

import pytest

from distkeras_grid.engine.gpus import VISIBLE, gpus_of, refuse_unassigned, use_gpus
from distkeras_grid.errors import ClusterError, ConfigurationError
from tests.processes import python_output

SEES = """
import os, sys
from distkeras_grid.engine.gpus import use_gpus
use_gpus(["2", "3"])
print(os.environ["CUDA_VISIBLE_DEVICES"], os.environ["TF_FORCE_GPU_ALLOW_GROWTH"])
print("tensorflow" in sys.modules)
"""


def test_addresses_are_those_of_the_task():
    assert gpus_of({}) is None
    assert gpus_of({"gpu": SimpleNamespace(addresses=["1", "3"])}) == ["1", "3"]


def test_they_are_set_before_tensorflow_is_there():
    assert python_output(SEES) == ["2,3", "true", "False"]


def test_without_gpus_of_spark_the_environment_decides(monkeypatch):
    monkeypatch.setenv(VISIBLE, "7")
    use_gpus(None)
    assert os.environ[VISIBLE] == "7"


def test_a_process_keeps_the_gpus_it_began_with(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow", SimpleNamespace())
    monkeypatch.setenv(VISIBLE, "0")
    use_gpus(["0"])
    with pytest.raises(ClusterError, match=r"DEVICES=0, .* GPU 1: .*reuse=false"):
        use_gpus(["1"])
    assert os.environ[VISIBLE] == "0"


def test_gpus_that_nobody_was_given_are_not_shared_in_silence():
    with pytest.raises(ConfigurationError, match="gpu_sharing=True"):
        refuse_unassigned(None, visible=1, workers=2)
    refuse_unassigned(None, visible=1, workers=1)
    refuse_unassigned(None, visible=0, workers=2)
    refuse_unassigned(["0"], visible=1, workers=2)
