"""Asynchronous trainers whose server gives late commits less weight."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Unpack

from distkeras_grid.rules import DistanceRule, DynamicRateRule, EnergyMatchingRule, Rule
from distkeras_grid.trainers.base import CommonArguments, Trainer
from distkeras_grid.trainers.downpour import ADAG

if TYPE_CHECKING:
    import keras


class DynSGD(Trainer):
    """Dynamic learning rate: a commit counts ``1 / (staleness + 1)``.

    Jiang et al., "Heterogeneity-aware Distributed Parameter Servers", SIGMOD 2017, in dist-keras'
    form; see `DynamicRateRule`. A slow worker counts little, so its rows should be similar to the
    others'.

    Parameters
    ----------
    keras_model : keras.Model
        The model.
    **common
        As in `Trainer`. The window is 5 batches.
    """

    default_window: ClassVar[int] = 5

    def __init__(
        self, keras_model: keras.Model, *positional: object, **common: Unpack[CommonArguments]
    ) -> None:
        super().__init__(keras_model, *positional, **common)

    def build_rule(self, workers: int, optimizer: str) -> Rule:  # noqa: ARG002
        """Return the rule."""
        return DynamicRateRule()


class StalenessADAG(ADAG):
    """Accumulated gradients, with less of them for weights that other workers have moved.

    Hermans' thesis of 2017 calls it ADAG, dist-keras ``Experimental``; see `DistanceRule`. The
    server keeps one vector for each worker.

    Parameters
    ----------
    keras_model : keras.Model
        The model.
    gamma : float, default 1e-4
        Square of the distance at which a weight's change counts half.
    **common
        As in `Trainer`. The window is the number of workers, at least 2.
    """

    introduction: ClassVar[str] = ""

    def __init__(
        self,
        keras_model: keras.Model,
        *positional: object,
        gamma: float = 1e-4,
        **common: Unpack[CommonArguments],
    ) -> None:
        self.gamma = gamma
        super().__init__(keras_model, *positional, **common)

    def build_rule(self, workers: int, optimizer: str) -> Rule:  # noqa: ARG002
        """Return the rule."""
        return DistanceRule(self.gamma)


class GEM(Trainer):
    """Gradient energy matching: all workers together move as momentum SGD would.

    Hermans and Louppe, 2018; see `EnergyMatchingRule`. It exchanges after every batch, which is
    the most that any trainer asks of the network, and the server keeps two vectors for each worker.

    Parameters
    ----------
    keras_model : keras.Model
        The model.
    momentum : float, default 0.9
        Momentum of the proxy whose energy is matched.
    kappa : float, default 1.0
        Factor of that energy; the authors call 2 a good value, and 4 diverges.
    largest_scale : float, default 5.0
        Largest factor of a step.
    exclude_own_commit : bool, default False
        Whether the shift of the center leaves out the worker's own last commit. The paper counts
        it.
    **common
        As in `Trainer`. The optimizer must be plain SGD. The window is one batch. With a longer
        one, the change of the window replaces the gradient, which is our extension.
    """

    default_window: ClassVar[int] = 1

    def __init__(
        self,
        keras_model: keras.Model,
        *positional: object,
        momentum: float = 0.9,
        kappa: float = 1.0,
        largest_scale: float = 5.0,
        exclude_own_commit: bool = False,
        **common: Unpack[CommonArguments],
    ) -> None:
        self.momentum = momentum
        self.kappa = kappa
        self.largest_scale = largest_scale
        self.exclude_own_commit = exclude_own_commit
        super().__init__(keras_model, *positional, **common)

    def build_rule(self, workers: int, optimizer: str) -> Rule:  # noqa: ARG002
        """Return the rule."""
        return EnergyMatchingRule(**self.arguments())
