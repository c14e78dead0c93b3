"""Begins a run again, from its newest checkpoint, when its parameter server has died."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distkeras_grid.errors import ServerUnreachableError
from distkeras_grid.parameter_server.retry_policy import MOST_FAILURES, RetryPolicy
from distkeras_grid.trainers.run_status import RunStatus

if TYPE_CHECKING:
    from distkeras_grid.trainers.preparation import TrainingJob
    from distkeras_grid.trainers.run_status import RunProgress

#: What to do after a server has died in a run without checkpoints.
NO_CHECKPOINTS = "With checkpoint_dir the run would have begun again from its newest checkpoint."


class ServerDeaths:
    """Decides whether a run begins again; its progress is a new checkpoint."""

    def __init__(self) -> None:
        self._retries, self._checkpoints = RetryPolicy(), 0
        #: Samples in the history of this driver's run when its server died; None if none has.
        self.samples: int | None = None

    def survived(self, error: BaseException, prepared: TrainingJob, progress: RunProgress) -> bool:
        """Return whether the run begins again after this error, and say so."""
        checkpointer = prepared.checkpointer
        # An interrupt may come in place of the server's error, while the tasks are cancelled.
        if not prepared.lost_server or not isinstance(error, ServerUnreachableError):
            return False
        if checkpointer is None:
            error.add_note(NO_CHECKPOINTS)
            return False
        checkpointer.check_own()
        self._checkpoints += checkpointer.written
        if not self._retries.allows(0, self._checkpoints):
            error.add_note(f"This happened {MOST_FAILURES} times without a checkpoint in between.")
            return False
        self.samples = prepared.history.samples
        reason = next(iter(str(error).splitlines()), "")
        progress.note(
            "The parameter server has died, and the run begins again from its newest checkpoint, "
            f"if there is one: {reason}"
        )
        progress.update(phase=RunStatus().phase)
        return True
