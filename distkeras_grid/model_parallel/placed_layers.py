"""The trainer of models that are too large for one worker: blocks of layers, one on each."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Literal

from distkeras_grid.errors import ConfigurationError
from distkeras_grid.model_parallel.base import ModelParallelTrainer
from distkeras_grid.model_parallel.job import run_group
from distkeras_grid.model_parallel.parts_engine import FullModelLayout
from distkeras_grid.model_parallel.pipeline_partition import (
    check_stageable,
    choose_cuts,
    stages_of,
)
from distkeras_grid.model_parallel.rows_apart import check_mean_loss
from distkeras_grid.model_parallel.tasks import placed_engine, stage_module
from distkeras_grid.model_parallel.towers import check_separable
from distkeras_grid.rules.parameters import checked_whole
from distkeras_grid.spark.session import active_session, stable_slot_count
from distkeras_grid.trainers.parameters import parameter

if TYPE_CHECKING:
    import keras

    from distkeras_grid.trainers.config import TrainingData
    from distkeras_grid.trainers.preparation import TrainingJob
    from distkeras_grid.trainers.run_status import RunProgress

#: Micro-batches for each worker, unless the user gives their number.
FOR_EACH_WORKER = 4


class PlacedLayers(ModelParallelTrainer):
    """One model in stages: contiguous blocks of its layers, each on a worker of its own.

    It is meant for models that one worker has no memory for. A batch goes through the stages in
    micro-batches, in the order 1F1B, and then each stage takes a step with its own optimizer. The
    result is that of the whole model on one process up to rounding. What travels are the
    activations at the cuts, in every batch, so it pays for memory and on cores of one machine not
    for time. See the guide in ``distkeras_grid/model_parallel``.

    The model is Sequential or functional, on the TensorFlow backend, with one ``float32`` input and
    one output, and can be cut at single tensors. `num_workers` is the number of stages, and
    `batch_size` the batch of the whole model. The window is 16 batches by default; it sets how
    often the stages' weights reach the driver. A stage that trains answers each micro-batch within
    `round_timeout`, or the master gives up its attempt. Clipping by the global norm is refused,
    because it needs the gradients of all stages. `jit` cannot be True.
    """

    elsewhere: ClassVar[str] = "layers"

    micro_batches: int | None = parameter(
        default=None,
        least=1,
        doc="Parts of a batch; by default four for each worker, and at most `batch_size`. More of "
        "them mean less waiting and less memory, and more calls. Batch normalization needs 1.",
    )
    cuts: Literal["auto"] | Sequence[str] = parameter(
        default="auto",
        doc="Names of the layers after which the model is cut, one less than there are workers. "
        '"auto" divides the multiplications evenly, which it counts from the layers\' shapes.',
    )

    @property
    def stages(self) -> int:
        """Number of stages; 0 if there are as many as slots."""
        return (self.num_workers or 0) if self.cuts == "auto" else len(self.cuts) + 1

    @property
    def devices(self) -> int:
        """Number of tasks: one for each stage."""
        return self.stages

    def check_request(
        self,
        data: TrainingData,  # noqa: ARG002
        callbacks: Sequence[keras.callbacks.Callback],  # noqa: ARG002
    ) -> None:
        """Refuse models that cannot be cut, and more stages than task slots."""
        slots = self.check_group(self.stages or None)
        stages = self.stages or slots
        check_stageable(self.keras_model, self._micro_batches(stages))
        if self.cuts == "auto":
            choose_cuts(self.keras_model, stages)

    def execute(self, prepared: TrainingJob, progress: RunProgress) -> keras.Model:
        """Run all stages to the end; see `Trainer.execute`."""
        import keras

        from distkeras_grid.engine.keras_model import model_from_bytes, model_to_bytes

        compiled = prepared.data.compiled
        count = self.stages or stable_slot_count(active_session(), None)
        micro_batches = self._micro_batches(count)
        check_separable(compiled.model.optimizer)
        check_mean_loss(compiled.model, micro_batches)
        # A copy, because its layers will remember the stages.
        model = model_from_bytes(compiled.archive, compiled.objects)
        cuts = choose_cuts(model, count) if self.cuts == "auto" else self.cuts
        if prepared.resumed is not None:
            _check_same_cuts(prepared.resumed.driver.cuts, list(cuts))
        progress.note(f"The model is cut after: {', '.join(cuts) or 'nowhere'}.")
        for record in (prepared.description, prepared.history.params):
            record["cuts"] = list(cuts)
        stages = stages_of(model, cuts)
        with keras.saving.custom_object_scope(dict(compiled.objects)):
            stages[-1].compile_from_config(compiled.model.get_compile_config())
        whole = FullModelLayout.of(model, stages)
        optimizer = keras.optimizers.serialize(compiled.model.optimizer)
        *others, last = map(model_to_bytes, stages)

        engine = partial(placed_engine, whole, micro_batches)
        module = partial(stage_module, optimizer)
        return run_group(prepared, progress, count, engine, module, (last, *others))

    def _micro_batches(self, stages: int) -> int:
        return min(self.micro_batches or FOR_EACH_WORKER * stages, self.batch_size)

    def check(self) -> None:
        """Refuse what does not go with devices, and what `TrainerConfig.check` refuses."""
        super().check()
        if self.micro_batches is not None:
            checked_whole("micro_batches", self.micro_batches, least=1, most=self.batch_size)
        names = self.cuts
        if names != "auto" and self.num_workers not in (None, len(names) + 1):
            raise ConfigurationError(
                f"A model that is cut {len(names)} times has {len(names) + 1} stages, each with a "
                f"worker of its own. Received: num_workers={self.num_workers!r}. Leave it out."
            )


def _check_same_cuts(begun: list[str] | None, cuts: list[str]) -> None:
    if begun not in (None, cuts):
        raise ConfigurationError(
            "A run of PlacedLayers goes on with the stages with which it began. Checkpoint: "
            f"cuts={begun}. Received: cuts={cuts}. Give the same cuts or num_workers."
        )
