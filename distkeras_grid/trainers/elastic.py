"""Trainers whose workers are tied to the center by an elastic force."""

from __future__ import annotations

from typing import ClassVar

from distkeras_grid.errors import ConfigurationError
from distkeras_grid.rules import ElasticMomentumRule, ElasticRoundRule, ElasticRule, Rule
from distkeras_grid.trainers.base import Trainer
from distkeras_grid.trainers.defaults import choose_alpha
from distkeras_grid.trainers.parameters import parameter


class AEASGD(Trainer):
    """Asynchronous elastic averaging: workers keep their own weights, pulled toward the center.

    Zhang, Choromanska and LeCun, "Deep learning with Elastic Averaging SGD", NIPS 2015. The window
    is 32 batches.
    """

    default_window: ClassVar[int] = 32

    alpha: float | None = parameter(
        default=None,
        above=0,
        doc="Share of the distance by which worker and center move in one exchange, at most 1; "
        "default 0.9 / num_workers, as the authors' code.",
    )
    rho: float | None = parameter(
        default=None,
        above=0,
        doc="dist-keras' form: ``alpha = rho * learning_rate``. As there, `learning_rate` then "
        "sets only alpha, and not the optimizer's rate.",
    )

    def build_rule(self, workers: int, optimizer: str) -> Rule:  # noqa: ARG002
        """Return the rule with the force for this many workers."""
        return ElasticRule(choose_alpha(self.alpha, self.rho, self.learning_rate, workers))

    @property
    def optimizer_rate(self) -> float | None:
        """The optimizer's rate; with `rho`, `learning_rate` belongs to alpha."""
        return self.learning_rate if self.rho is None else None


class EAMSGD(AEASGD):
    """Asynchronous elastic averaging of workers with Nesterov's momentum.

    Zhang, Choromanska and LeCun, NIPS 2015, algorithm 2; see `ElasticMomentumRule`. The optimizer
    must be plain SGD: the momentum belongs to the rule. The window is 32 batches.
    """

    momentum: float = parameter(
        default=0.9, doc="Momentum of each worker; the authors use 0.99 with small rates."
    )

    def build_rule(self, workers: int, optimizer: str) -> Rule:  # noqa: ARG002
        """Return the rule with the force for this many workers."""
        force = choose_alpha(self.alpha, self.rho, self.learning_rate, workers)
        return ElasticMomentumRule(force, self.momentum)


class EASGD(AEASGD):
    """Synchronous elastic averaging: all workers exchange at once, against the same center.

    Zhang, Choromanska and LeCun, NIPS 2015, equations 2 and 3; see `ElasticRoundRule`. In each
    round the distance of workers that agree to the center is multiplied by
    ``1 - alpha (num_workers + 1)``, so alpha must be below ``2 / (num_workers + 1)``. The window is
    32 batches. All workers must run at the same time.
    """

    def build_rule(self, workers: int, optimizer: str) -> Rule:  # noqa: ARG002
        """Return the rule, unless workers and center would jump past each other, and never meet."""
        force = choose_alpha(self.alpha, self.rho, self.learning_rate, workers)
        if force * (workers + 1) >= 2:
            raise ConfigurationError(
                f"alpha must be below {2 / (workers + 1):.3g} for rounds of {workers} worker(s), "
                f"which pull the center at once. Received: {force:g}. Leave alpha and rho out "
                f"(then it is {0.9 / workers:.3g}), or take AEASGD."
            )
        return ElasticRoundRule(force)
