"""A trainer in which each worker trains its own model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Literal, Unpack

from distkeras_grid.engine.compile_settings import compile_model
from distkeras_grid.engine.custom_objects import register_objects
from distkeras_grid.engine.keras_model import (
    model_from_bytes,
    model_to_bytes,
    set_flat_weights,
)
from distkeras_grid.errors import ConfigurationError
from distkeras_grid.rules import IndependentRule, Rule
from distkeras_grid.trainers.base import CommonArguments, Trainer

if TYPE_CHECKING:
    import keras

    from distkeras_grid.spec import Share
    from distkeras_grid.trainers.run_request import DataRequest
    from distkeras_grid.weights import Vector

DATA = ("full", "partition", "bootstrap")


class EnsembleTrainer(Trainer):
    """Several models, one on each worker, and one model that combines them.

    Hansen and Salamon, "Neural network ensembles", IEEE PAMI 12, 1990; with
    ``data="bootstrap"`` bagging (Breiman, "Bagging predictors", Machine Learning 24, 1996). It
    costs one training for each member.

    Parameters
    ----------
    keras_model : keras.Model
        The model, with one input and one output.
    data : {"full", "partition", "bootstrap"}, default "full"
        What each member trains on: all rows, its own share of them, or a sample of as many rows,
        drawn with replacement.
    initial : {"own", "given"}, default "own"
        Weights that members start from. "own": each member but the first draws new ones. "given":
        all start from the model's.
    combine : {"mean", "vote", "geometric"}, default "mean"
        How the members' outputs are combined; see `Combination`.
    **common
        As in `Trainer`; `num_workers` is the number of members. The window is 16 batches. It only
        sets how often weights and figures reach the driver.

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

    def __init__(
        self,
        keras_model: keras.Model,
        *positional: object,
        data: Share = "full",
        initial: Literal["own", "given"] = "own",
        combine: Literal["mean", "vote", "geometric"] = "mean",
        **common: Unpack[CommonArguments],
    ) -> None:
        if data not in DATA:
            raise ConfigurationError(
                f"data must be one of {', '.join(map(repr, DATA))}. Received: {data!r}."
            )
        if initial not in ("own", "given"):
            raise ConfigurationError(f"initial must be 'own' or 'given'. Received: {initial!r}.")
        self.data = data
        self.initial = initial
        self.combine = combine
        self.models: list[keras.Model] = []
        super().__init__(keras_model, *positional, **common)
        # It imports Keras, which the checks before do not need.
        from distkeras_grid.engine.combination import check_combination

        check_combination(combine)

    @property
    def seats_hold(self) -> Share:
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
        self, data: DataRequest, callbacks: Sequence[keras.callbacks.Callback]
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

        archive, objects = model_to_bytes(model), dict(self.custom_objects or {})
        self.models = [model_from_bytes(archive, objects) for _ in centers]
        for member, center in zip(self.models, centers, strict=True):
            set_flat_weights(member, center)
            register_objects(member, objects)
        together = combine_models(self.models, self.combine)
        together.compile(
            **keras.saving.deserialize_keras_object(
                model.get_compile_config(), custom_objects=objects
            )
        )
        compile_model(together)
        return together
