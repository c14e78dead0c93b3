"""Fixtures of the tests of faults."""

from __future__ import annotations

import multiprocessing.forkserver

import pytest


@pytest.fixture(scope="session")
def forkserver() -> None:
    """Start the process that forks workers; it lives as long as this one, with its folder."""
    multiprocessing.forkserver.ensure_running()
