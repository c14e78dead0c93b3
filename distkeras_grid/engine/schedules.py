"""A schedule of the learning rate that starts later, in a file that imports Keras."""

from __future__ import annotations

from typing import Any

import keras

Schedule = keras.optimizers.schedules.LearningRateSchedule


class LaterSchedule(Schedule):  # type: ignore[misc, valid-type]
    """A schedule at later steps than the optimizer counts.

    It stays in an engine's model and is never saved.
    """

    def __init__(self, schedule: Any, offset: Any) -> None:
        self._schedule, self._offset = schedule, offset

    def __call__(self, step: Any) -> Any:
        """Return the schedule's rate for the step and the offset."""
        step = keras.ops.convert_to_tensor(step)
        return self._schedule(step + keras.ops.cast(self._offset, step.dtype))

    def get_config(self) -> dict[str, Any]:
        """Return the configuration of the user's schedule."""
        config: dict[str, Any] = self._schedule.get_config()
        return config
