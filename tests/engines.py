"""Engines of the backend that Keras runs on in this process, for tests that hold for each."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import numpy as np

from distkeras_grid.engine.keras_engine import KerasEngine
from distkeras_grid.engine.registry import backend_named, build_engine, current_backend


class _Keras:
    """Keras, imported when a test first uses it: tests are collected without TensorFlow."""

    def __getattr__(self, name: str) -> Any:
        import keras

        return getattr(keras, name)


keras = _Keras()

#: Environments beside .venv, which see its packages: ``make torch``.
BESIDE = Path(__file__).parent.parent / "build"


def interpreter_with(backend: str) -> str | None:
    """Return a Python that can import a backend: this one, or that of its own environment."""
    if all(importlib.util.find_spec(name) for name in backend_named(backend).packages):
        return sys.executable
    python = BESIDE / backend / "bin" / "python"
    return str(python) if (BESIDE / backend / ".ready").exists() else None


def engine_of(model: Any, **options: Any) -> KerasEngine:
    return build_engine(current_backend(), model, **options)


def assert_equals_fit(weights: np.ndarray, fitted: np.ndarray) -> None:
    """Compare a window's weights with those of ``fit``, whose images were scaled beforehand.

    XLA joins the scaling and what follows it into one operation that rounds once, so the last bits
    differ on JAX. Operation by operation, on TensorFlow and PyTorch, all bits are the same.
    """
    if current_backend() != "jax":
        np.testing.assert_array_equal(weights, fitted)
    assert np.linalg.norm(weights - fitted) <= 1e-5 * np.linalg.norm(fitted)
