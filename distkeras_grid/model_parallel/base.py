"""What the trainers of one model on several workers share."""

from __future__ import annotations

from typing import ClassVar

from distkeras_grid.errors import ConfigurationError
from distkeras_grid.rules import Rule, SequentialRule
from distkeras_grid.spark.doctor import check_scheduling, check_slots, raise_or_collect
from distkeras_grid.spark.session import active_session, stable_slot_count
from distkeras_grid.trainers.arguments import check_tensorflow
from distkeras_grid.trainers.base import Trainer


class ModelParallelTrainer(Trainer):
    """A trainer whose workers have parts of one model; the first one is the run's only worker."""

    default_window: ClassVar[int] = 16
    is_model_parallel: ClassVar[bool] = True
    #: What other workers compute, in an error.
    elsewhere: ClassVar[str]

    @property
    def requested_workers(self) -> int:
        """One worker trains: the master."""
        return 1

    def build_rule(self, workers: int, optimizer: str) -> Rule:  # noqa: ARG002
        """Return the rule: the center is the weights of the whole model."""
        return SequentialRule()

    def check(self) -> None:
        """Refuse what does not go with devices, and what `TrainerConfig.check` refuses."""
        super().check()
        if self.jit is True:
            raise ConfigurationError(
                f"XLA cannot compile a model whose {self.elsewhere} are elsewhere. Received: "
                "jit=True. Leave it out."
            )

    def check_group(self, wanted: int | None) -> int:
        """Refuse a cluster on which Spark would not start so many tasks at once; return the slots.

        Without `wanted`, a task takes each slot.
        """
        check_tensorflow(type(self).__name__)
        spark = active_session()
        raise_or_collect(check_scheduling(spark.sparkContext.getConf().get, barrier=True))
        count = stable_slot_count(spark, wanted)
        raise_or_collect([check_slots(count, wanted)])
        return count
