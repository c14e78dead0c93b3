"""Where workers make the steps: how another one gets to where they are.

All workers hold the same weights and the same optimizer state, for they apply the same optimizer to
the same mean gradients. The server keeps both as one of them told it last, and every step since;
who starts, or comes late, makes these steps again and is where the others are, bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from distkeras_grid.errors import RefusedError
from distkeras_grid.weights import Vector

#: Steps after which the server asks for newer weights: it keeps so many gradients, and who starts
#: makes so many steps.
KEPT_STEPS = 16


@dataclass(frozen=True, slots=True)
class KeptStep:
    """One step.

    Parameters
    ----------
    gradient : ndarray
        The whole vector ``[mean gradient | statistics]``.
    learning_rate : float or None
        The rate that the driver had set when the round closed.
    """

    gradient: Vector
    learning_rate: float | None


class Replay:
    """Weights and optimizer state of one version, and the steps since.

    Attributes
    ----------
    version : int
        Of the state.
    parts : list of ndarray
        The optimizer state, as vectors of the run's size; empty: as the run began. A newer state is
        a new list, so who holds the old one may read it to its end.
    """

    def __init__(self) -> None:
        self.version = 0
        self.parts: list[Vector] = []
        self._steps: dict[int, KeptStep] = {}
        self._arriving: dict[int, list[Vector]] = {}

    def add(self, version: int, step: KeptStep) -> None:
        """Keep the step that leads from a version to the next."""
        self._steps[version] = step

    def step(self, version: int) -> KeptStep:
        """Return the step that follows a version.

        Raises
        ------
        RefusedError
            If it is not kept.
        """
        if version not in self._steps:
            known = f"{min(self._steps)} to {max(self._steps)}" if self._steps else "none"
            raise RefusedError(f"The step after version {version} is not kept; kept are {known}.")
        return self._steps[version]

    def receive(
        self, seat: int, version: int, part: int, parts: int, vector: Vector
    ) -> Vector | None:
        """Take a part of a seat's state; return the weights if it is complete and newer.

        Parameters
        ----------
        seat, version : int
            Whose, and of which version.
        part, parts : int
            Which part, from 0, of how many; they come in order, the weights first.
        vector : ndarray
            Copied.

        Raises
        ------
        RefusedError
            If the part is not the one that is due.
        """
        arriving = [] if part == 0 else self._arriving.pop(seat, [])
        if not part == len(arriving) < parts:
            raise RefusedError(
                f"Of worker {seat}'s state part {len(arriving)} is due, part {part} of {parts} "
                "came in."
            )
        arriving.append(vector.copy())
        if len(arriving) < parts:
            self._arriving[seat] = arriving
            return None
        if version <= self.version:
            return None
        self.version = version
        weights, *self.parts = arriving
        return weights

    def forget(self, needed: Iterable[int]) -> None:
        """Drop the steps that nobody will ask for.

        Parameters
        ----------
        needed : iterable of int
            Versions that workers are at.
        """
        oldest = min([self.version, *needed])
        for version in [version for version in self._steps if version < oldest]:
            del self._steps[version]
