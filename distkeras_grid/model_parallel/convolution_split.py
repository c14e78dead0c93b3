"""The trainer whose workers compute parts of one model's convolutions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

from distkeras_grid.errors import ConfigurationError
from distkeras_grid.model_parallel.job import run_devices
from distkeras_grid.model_parallel.master_registry import RegistryAddress
from distkeras_grid.model_parallel.tasks import SplitJob, run_device, run_master
from distkeras_grid.model_parallel.time_model import Layers
from distkeras_grid.rules import Rule, SequentialRule
from distkeras_grid.spark.doctor import check_slots, raise_or_collect
from distkeras_grid.spark.session import active_session, stable_slot_count
from distkeras_grid.trainers.arguments import check_tensorflow
from distkeras_grid.trainers.base import Trainer
from distkeras_grid.trainers.parameters import parameter

if TYPE_CHECKING:
    import keras

    from distkeras_grid.trainers.config import TrainingData
    from distkeras_grid.trainers.preparation import TrainingJob
    from distkeras_grid.trainers.run_status import RunProgress


class ConvolutionSplit(Trainer):
    """One model, whose convolutions several devices compute together.

    The first worker is the master. It has the rows, the model and the optimizer, and trains as
    `SingleTrainer` does, with the weights that `SingleTrainer` finds up to rounding. Each
    convolution is divided by its output channels (with groups: by its groups) in proportion to the
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

    default_window: ClassVar[int] = 16
    divides_model: ClassVar[bool] = True

    layers: Literal["auto", "all"] | Sequence[str] = parameter(
        default="auto",
        doc="Which convolutions are divided: those for which it pays according to the time model, "
        "all, or those with these names. Named layers are divided in any case.",
    )

    @property
    def workers_asked(self) -> int:
        """One worker trains: the master."""
        return 1

    @property
    def devices(self) -> int:
        """Number of tasks: the master and the others."""
        return self.num_workers or 0

    def build_rule(self, workers: int, optimizer: str) -> Rule:  # noqa: ARG002
        """Return the rule: the center is the master's weights."""
        return SequentialRule()

    def check_request(
        self,
        data: TrainingData,  # noqa: ARG002
        callbacks: Sequence[keras.callbacks.Callback],  # noqa: ARG002
    ) -> None:
        """Refuse layers that cannot be divided, and more devices than task slots."""
        from distkeras_grid.model_parallel.convolution_finder import find_convolutions

        check_tensorflow(type(self).__name__)
        layers = self._layers()
        convolutions = find_convolutions(self.keras_model)
        if layers not in ("auto", "all"):
            convolutions.chosen(tuple(layers))
        if not convolutions.layers:
            whole = "; ".join(f"{name}: {why}" for name, why in convolutions.whole.items())
            raise ConfigurationError(
                "ConvolutionSplit needs a model with a convolution that can be divided. Received: "
                f"{whole or 'a model without convolutions'}. Train it with another trainer."
            )
        spark, wanted = active_session(), self.num_workers
        raise_or_collect([check_slots(stable_slot_count(spark, wanted), wanted)])

    def execute(self, prepared: TrainingJob, progress: RunProgress) -> keras.Model:
        """Run master and devices to the end; see `Trainer.execute`."""
        count = self.num_workers or stable_slot_count(active_session(), None)

        def plan(guide: RegistryAddress) -> SplitJob:
            return SplitJob(guide=guide, count=count, spec=prepared.spec, layers=self._layers())

        return run_devices(prepared, progress, count, plan, run_master, run_device)

    def _layers(self) -> Layers:
        if self.layers == "auto":
            return "auto"
        return "all" if self.layers == "all" else tuple(self.layers)

    def check(self) -> None:
        """Refuse what does not go with devices, and what `TrainerConfig.check` refuses."""
        super().check()
        if self.jit is True:
            raise ConfigurationError(
                "XLA cannot compile a model whose convolutions other devices compute. "
                "Received: jit=True. Leave it out."
            )
