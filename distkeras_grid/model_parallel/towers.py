"""The trainer of wide networks as stacks of small ones, each on a device of its own."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from distkeras_grid.errors import ConfigurationError
from distkeras_grid.model_parallel.base import ModelParallelTrainer
from distkeras_grid.model_parallel.job import run_group
from distkeras_grid.model_parallel.tasks import tower_module, towers_engine
from distkeras_grid.model_parallel.tower_model import stack
from distkeras_grid.trainers.parameters import Parameterized, parameter

if TYPE_CHECKING:
    import keras

    from distkeras_grid.trainers.config import TrainingData
    from distkeras_grid.trainers.preparation import TrainingJob
    from distkeras_grid.trainers.run_status import RunProgress


class _TowerModels(Parameterized):
    """The models of `Towers`, its first arguments."""

    towers: Sequence[keras.Model] = parameter(
        kw_only=False,
        text="sequence of keras.Model",
        doc="Sequential or functional models with one ``float32`` input of the same shape, one "
        "output, and different names. They are not changed.",
    )
    master: keras.Model = parameter(
        kw_only=False,
        text="keras.Model",
        doc="With one input, it gets the outputs of the towers, concatenated on the last axis; "
        "with as many inputs as there are towers, it gets them in order.",
    )


class Towers(ModelParallelTrainer, _TowerModels):
    """A wide model as small networks side by side, which are trained in parallel.

    All towers see the same input, and the master model joins their outputs. Each tower is
    on a worker of its own, with its weights and its optimizer; the first one is on the worker that
    has the rows and the master. The result is that of the whole model on one process. Only inputs
    and outputs of the towers travel in each batch, so it pays for towers with many weights and few
    outputs. See the guide in ``distkeras_grid/model_parallel``.

    Each tower has an optimizer of its own of the kind of `worker_optimizer`; clipping by the global
    norm is refused, because it needs the gradients of all towers. `num_workers` is the number of
    towers. If `loss` is not given, `master` is compiled, and its settings are those of the whole
    model. The window is 16 batches by default; it sets how often the towers' weights reach the
    driver. A tower that trains answers within `round_timeout`, or the master gives up its attempt.

    Attributes
    ----------
    keras_model : keras.Model
        Towers and master as one model, as `train` returns it, with the weights before training.
    """

    elsewhere: ClassVar[str] = "towers"

    keras_model: keras.Model = parameter(init=False, text="keras.Model", doc="The whole model.")

    def __post_init__(self) -> None:
        self.keras_model = stack(self.towers, self.master)
        super().__post_init__()

    @property
    def devices(self) -> int:
        """Number of tasks: one for each tower."""
        return len(self.towers)

    def check_request(
        self,
        data: TrainingData,  # noqa: ARG002
        callbacks: Sequence[keras.callbacks.Callback],  # noqa: ARG002
    ) -> None:
        """Refuse more towers than task slots."""
        self.check_group(len(self.towers))

    def execute(self, prepared: TrainingJob, progress: RunProgress) -> keras.Model:
        """Run master and towers to the end; see `Trainer.execute`."""
        check_separable(prepared.data.compiled.model.optimizer)
        names = [model.name for model in (*self.towers, self.master)]
        engine, module = partial(towers_engine, names), partial(tower_module, names)
        return run_group(prepared, progress, len(self.towers), engine, module)

    def arguments(self) -> dict[str, Any]:
        """Return the names of towers and master, for ``run.json``."""
        return {"towers": [tower.name for tower in self.towers], "master": self.master.name}

    def check(self) -> None:
        """Refuse what does not go with devices, and what `TrainerConfig.check` refuses."""
        super().check()
        count = len(self.towers)
        if self.num_workers not in (None, count):
            raise ConfigurationError(
                f"Each of the {count} towers has a worker of its own. Received: "
                f"num_workers={self.num_workers!r}. Leave it out."
            )


def check_separable(optimizer: Any) -> None:
    """Refuse optimizers whose step for one variable depends on the others."""
    name = type(optimizer).__name__
    if getattr(optimizer, "global_clipnorm", None) is not None:
        raise ConfigurationError(
            "Clipping by the global norm needs the gradients of all towers at once, and each tower "
            f"has only its own. Received: {name}(global_clipnorm={optimizer.global_clipnorm!r}). "
            "Use clipnorm or clipvalue, which treat each variable by itself."
        )
    if optimizer.use_ema:
        raise ConfigurationError(
            "The averages of the weights would stay with each tower or stage. Received: "
            f"{name}(use_ema=True). Leave it out."
        )
    if hasattr(optimizer, "inner_optimizer") or hasattr(optimizer, "optimizers"):
        raise ConfigurationError(
            f"Each tower has one optimizer of its own. Received: {name}, which holds others. Give "
            "one of these."
        )
