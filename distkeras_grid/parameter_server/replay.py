"""Where workers make the steps: how another one gets to where they are.

All workers hold the same weights and the same optimizer state, for they apply the same optimizer to
the same mean gradients. The server keeps both as one of them told it last, and the steps since;
who starts, or comes late, makes these steps again and is where the others are, bit for bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from distkeras_grid.errors import RefusedError
from distkeras_grid.weights import Vector

#: Steps after which the server asks for newer weights: who starts makes so many steps.
KEPT_STEPS = 16
#: Steps that are kept at most. A worker that is further behind, such as one that hangs while a
#: quorum goes on without it, begins again from the newest weights.
MOST_STEPS = 2 * KEPT_STEPS
#: Vectors that weights and optimizer state may have; with Adam these are 4.
MOST_PARTS = 32


@dataclass(frozen=True, slots=True)
class KeptStep:
    """One step.

    Parameters
    ----------
    gradient : ndarray
        The whole vector: mean gradient and statistics, shape ``(size,)``, ``float32``.
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
        Version of the state.
    parts : list of ndarray
        The optimizer state, part by part; empty: as the run began. A newer state is a new list, so
        who holds the old one may read it to its end.
    at : dict of int to int
        Version that each seat is at, as far as the server knows.
    """

    def __init__(self) -> None:
        self.version = 0
        self.parts: list[Vector] = []
        self.at: dict[int, int] = {}
        self._steps: dict[int, KeptStep] = {}
        self._arriving: dict[int, list[Vector]] = {}
        # The optimizer state that each seat was promised at its start.
        self._promised: dict[int, list[Vector]] = {}

    def add(self, version: int, step: KeptStep) -> None:
        """Keep the step that leads from a version to the next."""
        self._steps[version] = step

    def begin(self, seat: int) -> tuple[int, int]:
        """Let a seat start from the state; return its version and the number of its parts."""
        self.at[seat] = self.version
        self._promised[seat] = self.parts
        return self.version, len(self.parts)

    def step(self, seat: int, version: int) -> KeptStep:
        """Return the step that follows the version of a seat.

        Raises
        ------
        RefusedError
            If it is not kept.
        """
        if version not in self._steps:
            known = f"{min(self._steps)} to {max(self._steps)}" if self._steps else "none"
            raise RefusedError(
                f"The step after version {version} is not kept. Kept: {known}. Join again to begin "
                f"from version {self.version}."
            )
        self._promised.pop(seat, None)
        self.at[seat] = version
        return self._steps[version]

    def promised(self, seat: int, part: int) -> Vector:
        """Return a part, from 1, of the optimizer state that a seat started with.

        Raises
        ------
        RefusedError
            If there is no such part.
        """
        parts = self._promised.get(seat, [])
        if not 1 <= part <= len(parts):
            raise RefusedError(
                f"The optimizer state has the parts 1 to {len(parts)}. Received: part {part}."
            )
        return parts[part - 1]

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
        if not part == len(arriving) < parts <= MOST_PARTS:
            raise RefusedError(
                f"Part {len(arriving)} of the state of worker {seat} is due, of {MOST_PARTS} at "
                f"most. Received: part {part} of {parts}."
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

    def lose(self, seat: int) -> None:
        """Wait no longer for a seat whose connection broke; what it was promised stays."""
        self.at.pop(seat, None)
        self._arriving.pop(seat, None)

    def leave(self, seat: int) -> None:
        """Drop all that is kept for a seat alone; its worker has finished or was replaced."""
        self.lose(seat)
        self._promised.pop(seat, None)

    def forget(self, newest: int) -> None:
        """Drop the steps that nobody will ask for, and those beyond `MOST_STEPS`.

        Parameters
        ----------
        newest : int
            Version that the run is at.
        """
        oldest = max(min([self.version, *self.at.values()]), newest - MOST_STEPS)
        for version in [version for version in self._steps if version < oldest]:
            del self._steps[version]

    @property
    def vectors(self) -> int:
        """Vectors that are kept."""
        arriving = sum(map(len, self._arriving.values()))
        promised = {id(part) for parts in self._promised.values() for part in parts}
        promised |= {id(part) for part in self.parts}
        return len(self._steps) + arriving + len(promised)

    def to_state(self) -> dict[str, Any]:
        """Return what changes, as a plain tree."""
        return {
            "version": self.version,
            "parts": [part.copy() for part in self.parts],
            "at": _named(self.at),
            "steps": {
                str(version): {"gradient": step.gradient.copy(), "rate": step.learning_rate}
                for version, step in self._steps.items()
            },
            "arriving": _named(self._arriving),
            "promised": _named(self._promised),
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """Build the replay that `to_state` described."""
        replay = cls()
        replay.version, replay.parts = state["version"], [part.copy() for part in state["parts"]]
        replay.at = {int(seat): version for seat, version in state["at"].items()}
        replay._steps = {
            int(version): KeptStep(step["gradient"].copy(), step["rate"])
            for version, step in state["steps"].items()
        }
        replay._arriving, replay._promised = (
            {int(seat): [part.copy() for part in parts] for seat, parts in state[kept].items()}
            for kept in ("arriving", "promised")
        )
        return replay


def _named(by_seat: Mapping[int, Any]) -> dict[str, Any]:
    """Return a mapping with texts as keys and copies of its lists of vectors."""
    return {
        str(seat): [part.copy() for part in value] if isinstance(value, list) else value
        for seat, value in by_seat.items()
    }
