"""Engines of the backend that Keras runs on in this process, for tests that hold for each."""

from __future__ import annotations

from typing import Any

import numpy as np

from distkeras_grid.engine.base import ModelEngine
from distkeras_grid.engine.registry import build_engine, current_backend


def engine_of(model: Any, **options: Any) -> ModelEngine:
    """Return an engine of a compiled model."""
    return build_engine(current_backend(), model, **options)


def assert_equals_fit(weights: np.ndarray, fitted: np.ndarray) -> None:
    """Compare a window's weights with those of ``fit``, whose images were scaled beforehand.

    XLA joins the scaling and what follows it into one operation that rounds once, so the last bits
    differ on JAX. On TensorFlow's own kernels all bits are the same.
    """
    if current_backend() == "tensorflow":
        np.testing.assert_array_equal(weights, fitted)
    assert np.linalg.norm(weights - fitted) <= 1e-5 * np.linalg.norm(fitted)
