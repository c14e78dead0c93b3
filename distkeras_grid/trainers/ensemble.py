"""A trainer in which each worker trains its own model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

from distkeras_grid.engine.compile_settings import compile_model
from distkeras_grid.engine.keras_model import (
    model_from_bytes,
    model_to_bytes,
    set_flat_weights,
)
from distkeras_grid.errors import ConfigurationError
from distkeras_grid.rules import IndependentRule, Rule
from distkeras_grid.spec import Share
from distkeras_grid.trainers.base import Trainer
from distkeras_grid.trainers.parameters import parameter

if TYPE_CHECKING:
    import keras

    from distkeras_grid.trainers.config import TrainingData
    from distkeras_grid.weights import Vector


class EnsembleTrainer(Trainer):
    """Several models, one on each worker, and one model that gives the mean of their outputs.

    Hansen and Salamon, "Neural network ensembles", IEEE PAMI 12, 1990; with
    ``data="bootstrap"`` bagging (Breiman, "Bagging predictors", Machine Learning 24, 1996). It
    costs one training for each member; `num_workers` is the number of members. The window is 16
    batches; it only sets how often weights and figures reach the driver.

    Attributes
    ----------
    models : list of keras.Model
        The members, compiled as the model was.

    Notes
    -----
    ``train`` returns the combined model, which predictors, evaluators and ``save`` take like any
    other. ``validation_data`` and callbacks are refused, because they need a single center.
    """

    default_window: ClassVar[int] = 16

    data: Share = parameter(
        default="full",
        doc="What each member trains on: all rows, its own share of them, or a sample of as many "
        "rows, drawn with replacement.",
    )
    initial: Literal["own", "given"] = parameter(
        default="own",
        doc='Weights that members start from. "own": each member but the first draws new ones. '
        '"given": all start from the model\'s.',
    )

    def __post_init__(self) -> None:
        self.models: list[keras.Model] = []
        super().__post_init__()

    @property
    def share(self) -> Share:
        """What each member trains on."""
        return self.data

    @property
    def own_start(self) -> bool:
        """Whether members draw their own weights."""
        return self.initial == "own"

    def build_rule(self, workers: int, optimizer: str) -> Rule:  # noqa: ARG002
        """Return the rule: each worker has a center of its own."""
        return IndependentRule()

    def check_request(
        self, data: TrainingData, callbacks: Sequence[keras.callbacks.Callback]
    ) -> None:
        """Refuse models that cannot be combined, and arguments that need a single center."""
        from distkeras_grid.engine.combination import check_combinable

        check_combinable(self.keras_model)
        if data.validation_data is not None or callbacks:
            raise ConfigurationError(
                "EnsembleTrainer takes no validation_data and no callbacks: each member has its "
                "own center. Leave them out, and evaluate the model that train() returns, or "
                "trainer.models."
            )

    def assemble(self, model: keras.Model, centers: Sequence[Vector]) -> keras.Model:
        """Return the model of all members."""
        import keras

        from distkeras_grid.engine.combination import combine_models

        archive, objects = model_to_bytes(model), self.objects
        self.models = [model_from_bytes(archive, objects) for _ in centers]
        for member, center in zip(self.models, centers, strict=True):
            set_flat_weights(member, center)
        together = combine_models(self.models)
        together.compile(
            **keras.saving.deserialize_keras_object(
                model.get_compile_config(), custom_objects=objects
            )
        )
        compile_model(together)
        return together
