"""Plain sequential training: a worker whose weights are the center."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from distkeras_grid.rules.base import (
    AsynchronousRule,
    CommitInfo,
    Memory,
    ReplyKind,
    RuleProperties,
)
from distkeras_grid.weights import Vector


@dataclass(frozen=True)
class SequentialRule(AsynchronousRule):
    """``c <- x``; the worker continues from its own ``x``, and the reply has no vector."""

    name: ClassVar[str] = "sequential"
    traits: ClassVar[RuleProperties] = RuleProperties(reply=ReplyKind.NOTHING, keeps_weights=True)

    def fold(self, center: Vector, payload: Vector, commit: CommitInfo, memory: Memory) -> None:  # noqa: ARG002
        """Replace the center."""
        np.copyto(center, payload)

    def apply_reply(self, after: Vector, reply: Vector, out: Vector) -> None:  # noqa: ARG002
        """Keep ``x``."""
        np.copyto(out, after)


@dataclass(frozen=True)
class IndependentRule(SequentialRule):
    """Sequential training of several workers, each with its own center."""

    name: ClassVar[str] = "member"
    traits: ClassVar[RuleProperties] = RuleProperties(
        reply=ReplyKind.NOTHING, own_center=True, keeps_weights=True
    )
