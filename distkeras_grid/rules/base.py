"""What every update rule is: a worker's side and a server's side of one algorithm.

Notation of the rules' docstrings: ``c`` is the center variable on the server, ``x`` a worker's
variable after its window and ``x0`` the one that it started the window from, ``k`` the number of
mini-batches (steps) in the window, ``n`` the number of workers.

Rules are stateless and pure NumPy. A rule acts on the trainable part of a vector only; the
statistics have one policy of their own (`distkeras_grid.rules.statistics`). Every operation is
elementwise, so a caller may apply it to a vector slice by slice.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np

from distkeras_grid.weights import Vector


@dataclass(frozen=True, slots=True)
class CommitInfo:
    """What a fold may know of a commit beside its vector.

    Parameters
    ----------
    seat : int
        Number of the worker, from 0.
    steps : int
        Mini-batches in the window, at least 1.
    samples : int
        Rows in the window, at least 1.
    staleness : int
        Commits of others that were folded since this worker's last reply.
    """

    seat: int
    steps: int
    samples: int
    staleness: int


@dataclass(frozen=True)
class Rule(ABC):
    """The worker's side, common to asynchronous and synchronous rules."""

    name: ClassVar[str]
    #: The worker goes on without the server's vector, so the reply carries none.
    empty_reply: ClassVar[bool] = False

    @abstractmethod
    def propose(self, before: Vector, after: Vector, steps: int, out: Vector) -> None:
        """Fill `out` with what the worker commits.

        Parameters
        ----------
        before, after : ndarray
            The trainable part at the start and at the end of the window, ``float32``.
        steps : int
            Mini-batches in the window, at least 1.
        out : ndarray
            What is sent; same shape. May be neither `before` nor `after`.
        """

    @abstractmethod
    def adopt(self, after: Vector, reply: Vector, out: Vector) -> None:
        """Fill `out` with the trainable part that the next window starts from.

        Parameters
        ----------
        after : ndarray
            The trainable part at the end of the window, ``float32``.
        reply : ndarray
            The server's reply; not read if `empty_reply`.
        out : ndarray
            May be `after` or `reply` itself.
        """

    def parameters(self) -> dict[str, Any]:
        """Return what `build_rule` needs beside the name, as plain JSON values."""
        return asdict(self)


@dataclass(frozen=True)
class AsynchronousRule(Rule):
    """A rule whose server folds each commit when it arrives."""

    @abstractmethod
    def fold(self, center: Vector, payload: Vector, commit: CommitInfo) -> None:
        """Fold a commit into the center and turn it into its reply.

        Parameters
        ----------
        center, payload : ndarray
            The same slice of the center and of the commit; both change in place.
        commit : CommitInfo
            Where the commit came from.
        """

    def repeat(self, center: Vector, payload: Vector) -> None:
        """Turn a commit that was folded before into its reply, and leave the center alone.

        Parameters
        ----------
        center, payload : ndarray
            The same slice of both; only `payload` changes.
        """
        np.copyto(payload, center)


@dataclass(frozen=True)
class SynchronousRule(Rule):
    """A rule whose server waits for every worker; the reply to all is the new center."""

    @abstractmethod
    def combine(
        self, center: Vector, payloads: Sequence[Vector], commits: Sequence[CommitInfo]
    ) -> None:
        """Fold one round of commits into the center.

        Parameters
        ----------
        center : ndarray
            A slice of the center; changes in place.
        payloads : sequence of ndarray
            The same slice of each commit, in the order of the seats, so that the result does not
            depend on who came first. They may be used as scratch space.
        commits : sequence of CommitInfo
            Where they came from, in the same order.
        """
