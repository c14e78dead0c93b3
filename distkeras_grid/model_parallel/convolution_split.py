"""The trainer whose workers compute parts of one model's convolutions."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from distkeras_grid.errors import ConfigurationError
from distkeras_grid.model_parallel.base import ModelParallelTrainer
from distkeras_grid.model_parallel.job import run_group
from distkeras_grid.model_parallel.tasks import split_engine, split_module
from distkeras_grid.model_parallel.time_model import Layers
from distkeras_grid.spark.session import active_session, stable_slot_count
from distkeras_grid.trainers.parameters import parameter

if TYPE_CHECKING:
    import keras

    from distkeras_grid.trainers.config import TrainingData
    from distkeras_grid.trainers.preparation import TrainingJob
    from distkeras_grid.trainers.run_status import RunProgress


class ConvolutionSplit(ModelParallelTrainer):
    """One model, whose convolutions several devices compute together.

    The first worker is the master. It has the rows, the model and the optimizer, and trains as
    `SingleTrainer` does, with the weights that `SingleTrainer` finds up to rounding. Each
    ``Conv2D`` that a batch passes once is divided by its output channels, in proportion to the
    measured speeds of all workers; everything else stays with the master. Before the first batch a
    table says what is divided, and whether that pays (Marques, Falcao and Alexandre 2018).

    It pays if convolutions take most of the time, the devices are slow and the network is fast; on
    the cores of one machine it does not. See the guide in ``distkeras_grid/model_parallel``.

    `num_workers` is the number of devices, the master included, and `batch_size` the batch of the
    whole model, which must be on the TensorFlow backend. The window is 16 batches by default; it
    only sets how often weights and figures reach the driver. XLA does not compile divided models,
    so `jit` cannot be True. With a fixed `master_port`, the next port is used, too; devices connect
    to the master's executor on any port.
    """

    elsewhere: ClassVar[str] = "convolutions"

    layers: Layers = parameter(
        default="auto",
        doc="Which convolutions are divided: those for which it pays, or all that can be, in any "
        "case.",
    )

    @property
    def devices(self) -> int:
        """Number of tasks: the master and the others."""
        return self.num_workers or 0

    def check_request(
        self,
        data: TrainingData,  # noqa: ARG002
        callbacks: Sequence[keras.callbacks.Callback],  # noqa: ARG002
    ) -> None:
        """Refuse layers that cannot be divided, and more devices than task slots."""
        from distkeras_grid.model_parallel.convolution_finder import find_convolutions

        self.check_group(self.num_workers)
        convolutions = find_convolutions(self.keras_model)
        if not convolutions.layers:
            whole = "; ".join(f"{name}: {why}" for name, why in convolutions.whole.items())
            raise ConfigurationError(
                "ConvolutionSplit needs a model with a convolution that can be divided. Received: "
                f"{whole or 'a model without a Conv2D'}. Train it with another trainer."
            )

    def execute(self, prepared: TrainingJob, progress: RunProgress) -> keras.Model:
        """Run master and devices to the end; see `Trainer.execute`."""
        count = self.num_workers or stable_slot_count(active_session(), None)
        return run_group(
            prepared, progress, count, partial(split_engine, self.layers), split_module
        )
