"""What every update rule is: a worker's side and a server's side of one algorithm.

Notation of the rules' docstrings: ``c`` is the center variable on the server, ``x`` a worker's
variable after its window and ``x0`` the one that it started the window from, ``k`` the number of
mini-batches (steps) in the window, ``n`` the number of workers.

Rules are pure NumPy and hold no state. If something must be remembered between two commits, the
server keeps it as vectors beside the center and hands them to the rule. A rule acts only on the
trainable part of a vector; statistics have their own policy (`distkeras_grid.rules.statistics`).
On the server every operation is elementwise, because the center is folded slice by slice. On the
worker `compute_commit` has the whole trainable vector, so norms belong there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any, ClassVar

import numpy as np

from distkeras_grid.weights import Vector

#: What the server keeps for a rule: the vectors of all seats first, then those of the seat.
Memory = Sequence[Vector]


class LocalSteps(Enum):
    """What a worker does in a window, and with it what ``after`` holds."""

    OPTIMIZER = "optimizer"
    LOOK_AHEAD = "look-ahead"
    GRADIENT = "gradient"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class CommitInfo:
    """What a fold may know about a commit, apart from its vector."""

    seat: int  # Number of the worker, from 0
    steps: int  # Mini-batches in the window, at least 1
    samples: int  # Rows in the window, at least 1
    staleness: int  # Commits of other workers that were folded since this worker's last reply


class CommitKind(Enum):
    """What a commit holds.

    `WEIGHTS`: the worker's weights. `CHANGES`: changes or gradients, of which the rule computes the
    center's step; their last digits may be lost. `SUMMANDS`: changes of which the center moves by a
    multiple, as the correction of momentum needs.
    """

    WEIGHTS = "weights"
    CHANGES = "changes"
    SUMMANDS = "summands"


class ReplyKind(Enum):
    """What the server replies to a commit."""

    VECTOR = "vector"
    STEP = "step"
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class RuleProperties:
    """What the other layers must know about a rule, in one place."""

    local_steps: LocalSteps = LocalSteps.OPTIMIZER  # What a worker does in a window
    sends: CommitKind = CommitKind.WEIGHTS  # What a commit holds
    reply: ReplyKind = ReplyKind.VECTOR  # What the server replies to a commit
    # Whether the rule computes its steps from plain gradients, so that workers must train with
    # plain SGD
    plain_sgd: bool = False
    # Whether each seat has its own center, which the other workers do not affect
    own_center: bool = False
    # Whether workers go on from weights of their own, which are not the center
    keeps_weights: bool = False
    # shared_vectors and seat_vectors: How many vectors the server keeps for all seats together, and
    # for each seat. Each is as long as the trainable section, and zero when the run begins.
    shared_vectors: int = 0
    seat_vectors: int = 0

    @property
    def compressible(self) -> bool:
        """Whether commits and replies may lose their last digits."""
        return self.sends is not CommitKind.WEIGHTS

    @property
    def adds_commits(self) -> bool:
        """Whether the weights move by a multiple of each commit."""
        return self.sends is CommitKind.SUMMANDS

    @property
    def steps_on_workers(self) -> bool:
        """Whether each worker's own optimizer takes a step with the gradient of each round."""
        return self.reply is ReplyKind.STEP

    @property
    def reply_has_vector(self) -> bool:
        """Whether the reply to a commit carries a vector."""
        return self.reply is ReplyKind.VECTOR

    @property
    def answers(self) -> bool:
        """Whether a vector comes back for each commit, in its reply or as a step."""
        return self.reply is not ReplyKind.NOTHING


@dataclass(frozen=True)
class Rule(ABC):
    """The worker's side, common to asynchronous and synchronous rules."""

    name: ClassVar[str]
    traits: ClassVar[RuleProperties] = RuleProperties()

    def compute_commit(self, before: Vector, after: Vector, steps: int, out: Vector) -> None:  # noqa: ARG002
        """Fill `out` with what the worker commits: `after`, unless a rule computes something else.

        `before, after`: the trainable part at the start and at the end of the window, ``float32``;
        `after` may be something else, see `LocalSteps`.
        `steps`: mini-batches in the window, at least 1.
        `out`: what is sent; same shape. May be neither `before` nor `after`.
        """
        np.copyto(out, after)

    def apply_reply(self, after: Vector, reply: Vector, out: Vector) -> None:  # noqa: ARG002
        """Fill `out` with the trainable part that the next window starts from: the reply.

        `out`: may be `after` or `reply` itself.
        """
        np.copyto(out, reply)

    @property
    def local_momentum(self) -> float:
        """Momentum of the look-ahead, where workers take one."""
        return 0.0

    def on_join(self, center: Vector, memory: Memory) -> None:  # noqa: B027 - most remember nothing
        """Record that a seat receives the center: at its start, or if a reply was lost.

        A `DeltaRule` calls it with every reply.
        """

    def repeat(self, center: Vector, payload: Vector) -> None:
        """Turn a commit that was folded before into its reply, and leave the center alone.

        `center, payload`: the same slice of both; only `payload` changes.
        """
        np.copyto(payload, center)

    def parameters(self) -> dict[str, Any]:
        """Return what `build_rule` needs beside the name, as plain JSON values."""
        return asdict(self)


@dataclass(frozen=True)
class AsynchronousRule(Rule):
    """A rule whose server folds each commit when it arrives."""

    @abstractmethod
    def fold(self, center: Vector, payload: Vector, commit: CommitInfo, memory: Memory) -> None:
        """Fold a commit into the center and turn it into its reply."""


@dataclass(frozen=True)
class SynchronousRule(Rule):
    """A rule whose server folds the commits of all workers at once."""

    @abstractmethod
    def aggregate(
        self, center: Vector, payloads: Sequence[Vector], commits: Sequence[CommitInfo]
    ) -> None:
        """Fold one round of commits into the center, and turn each into its reply.

        `payloads`: the same slice of each commit; all change in place. They are in the order of the
        seats, so that the result does not depend on which worker came first.
        """
