"""What compressed exchanges need."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from distkeras_grid.engine.local_optimizers import check_plain_sgd
from distkeras_grid.errors import ConfigurationError
from distkeras_grid.rules import gradient_compression

if TYPE_CHECKING:
    from distkeras_grid.parameter_server.compression import Compression
    from distkeras_grid.rules import Rule
    from distkeras_grid.trainers.defaults import CommunicationWindow


def check_compressible(compression: Compression | None, rule: Rule, who: str) -> None:
    """Refuse to compress what a rule sends, if that is weights."""
    if compression and not rule.traits.compressible:
        raise ConfigurationError(
            f"{who} sends weights, and compression would lose most of them. Received: "
            f"compression={compression!r}. Leave it out, or take a trainer that sends changes "
            "(ADAG, DOWNPOUR, DynSGD, GEM) or gradients (SynchronousSGD)."
        )


def check_momentum(
    compression: Compression | None, rule: Rule, window: CommunicationWindow, optimizer: Any
) -> None:
    """Refuse momentum correction if there is no momentum to correct, or there would be two."""
    deep = gradient_compression(compression)
    if deep is None or not deep.momentum:
        return
    single = rule.traits.steps_on_workers or window.batches == 1
    if not (rule.traits.adds_commits and single):
        raise ConfigurationError(
            f"DeepGradientCompression(momentum={deep.momentum:g}) corrects the momentum of single "
            f"gradients. Received: the rule {rule.name!r} with an exchange {window}. Take "
            "SynchronousSGD, or ADAG, DOWNPOUR or DynSGD with communication_window=1, or "
            "momentum=0, which works with every trainer that sends changes."
        )
    check_plain_sgd(optimizer, "DeepGradientCompression, which brings the momentum itself,")
