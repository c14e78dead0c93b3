"""Windows of a run for tests, by what matters to a test."""

from __future__ import annotations

from typing import Any

from distkeras_grid.records import WindowRecord


def window_record(version: int = 1, **changes: Any) -> WindowRecord:
    """Return the first window of worker 0: a step with 10 rows."""
    fields = {
        **{"worker": 0, "attempt": 0, "epoch": 1, "window": 0, "steps": 1, "samples": 10},
        **{"loss": 0.5, "metrics": {}, "started": 0.0, "seconds": 1.0, "staleness": 0},
        **{"bytes_up": 1, "bytes_down": 1, "folded_at": 1.0, "version": version},
    }
    return WindowRecord(**{**fields, **changes})
