"""The parameter server in simulated time: its own bookkeeping and arithmetic, without its threads.

`ServerState` and `Center` are those of the real server. What stands here is who waits for what,
which there are connections and locks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from distkeras_grid.errors import RefusedError
from distkeras_grid.parameter_server.center import Center
from distkeras_grid.parameter_server.messages import Exchanged, Start, WindowCommit
from distkeras_grid.parameter_server.settings import ServerSettings
from distkeras_grid.parameter_server.state import Arrival, ServerState, Session
from distkeras_grid.rules import AsynchronousRule
from distkeras_grid.rules.magnitudes import is_finite
from distkeras_grid.simulation.saved_state import put_together, take_apart

if TYPE_CHECKING:
    from distkeras_grid.simulation.learners import Stepper
    from distkeras_grid.simulation.wire import SimulatedWire
    from distkeras_grid.weights import Vector


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """What the server says to a worker.

    Parameters
    ----------
    session : Session
        To whom.
    vector : ndarray
        The center at the start, the rule's reply to a commit.
    message : Start or Exchanged
        The rest.
    size : int
        Bytes by which the vector travels.
    """

    session: Session
    vector: Vector
    message: Start | Exchanged
    size: int


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting:
    session: Session
    vector: Vector
    arrival: Arrival | None = None


class SimulatedServer:
    """State and center of one run.

    Parameters
    ----------
    settings : ServerSettings
        The run.
    vector : ndarray
        The initial weights, shape ``(settings.size,)``; changes in place.
    wire : SimulatedWire
        By which its answers travel.
    stepper : Stepper, optional
        Makes the steps of the workers, where they make them: the center is always where they are,
        and a late one is given what its own steps would lead to.

    Attributes
    ----------
    state : ServerState
        Seats, sequences, versions, events.
    center : Center
        The center, and what the rule remembers.
    round_opened : float or None
        When the first commit of a synchronous round came that is not complete yet [s].
    """

    def __init__(
        self,
        settings: ServerSettings,
        vector: Vector,
        wire: SimulatedWire,
        stepper: Stepper | None = None,
    ) -> None:
        self._settings, self._rule = settings, settings.build_rule()
        self.state = ServerState(settings)
        self.center = Center(self._rule, vector, settings.sections, settings.seats)
        self._asynchronous = isinstance(self._rule, AsynchronousRule)
        self._wire, self._stepper = wire, stepper
        # Of each step that the workers make, from version 0 on.
        self._step_bytes: list[int] = []
        self.round_opened: float | None = None
        self._starting: list[_Waiting] = []
        self._round: dict[int, _Waiting] = {}

    def ready(self, session: Session, rows: int, vector: Vector) -> list[Answer]:
        """Let a worker wait until all are there; the center comes into `vector`."""
        self.state.ready(session, rows)
        self._starting.append(_Waiting(session, vector))
        return self._open_gate()

    def exchange(self, arrival: Arrival, vector: Vector, now: float) -> list[Answer]:
        """Fold a commit or let it wait for its round; the reply comes into `vector`.

        Parameters
        ----------
        arrival : Arrival
            The commit.
        vector : ndarray
            What the rule proposes; changes in place.
        now : float
            Seconds since the run began.

        Returns
        -------
        list of Answer
            To whom this commit brings an answer: its own worker, all of a round, or nobody yet.

        Raises
        ------
        RefusedError
            If it must not be folded; nothing was.
        """
        session, state = arrival.session, self.state
        if not state.admit(arrival, is_finite(vector)):
            return [self._repeat(session, vector, state.repeat(session))]
        if self._asynchronous:
            self.center.fold(vector, state.info(arrival))
            size = self._wire.reply(session.seat, vector)
            (reply,), _ = state.fold([arrival], now, [size])
            return [Answer(session, vector, reply, size)]
        if state.is_late(arrival):
            return [self._repeat(session, vector, state.drop(arrival, now)[0])]
        if not self._round:
            self.round_opened = now
        self._round[session.seat] = _Waiting(session, vector, arrival)
        return self._close_round(now)

    def finish(self, session: Session, now: float) -> list[Answer]:
        """Note that a worker has no windows left; a round may be complete without it."""
        self.state.finish(session, now)
        return [*self._open_gate(), *self._close_round(now)]

    def step_bytes(self, since: int, version: int) -> int:
        """Return the bytes of the steps after version `since`, up to `version`."""
        return sum(self._step_bytes[since:version])

    def lose(self, session: Session) -> None:
        """Note that a worker is lost, and what it waited for with it."""
        self.state.lose(session)
        self._starting = [entry for entry in self._starting if entry.session != session]
        self._round.pop(session.seat, None)
        if not self._round:
            self.round_opened = None

    def time_out(self, seconds: float) -> RefusedError:
        """Return the error of a round that was open for `seconds`."""
        missing = ", ".join(map(str, self.state.missing(self._round)))
        return RefusedError(
            f"A synchronous round was not complete after {seconds:g} s of simulated time:"
            f" no commit from worker {missing}. Allow more with round_timeout, or ask for fewer"
            " with quorum."
        )

    def to_tree(self) -> dict[str, Any]:
        """Return all that changes, for `distkeras_grid.simulation.saved_state.write`."""
        return {
            "state": take_apart(self.state),
            "center": self.center.to_state(),
            "wire": self._wire.to_tree(),
            "stepper": None if self._stepper is None else self._stepper.state(),
            "step_bytes": list(self._step_bytes),
            "round_opened": self.round_opened,
            "starting": [_saved(entry) for entry in self._starting],
            "round": [_saved(entry) for entry in self._round.values()],
        }

    def restore(self, tree: Mapping[str, Any]) -> None:
        """Go on from what `to_tree` returned."""
        put_together(self.state, tree["state"])
        self.center = Center.from_state(
            self._rule, self._settings.sections, self._settings.seats, tree["center"]
        )
        self._wire.restore(tree["wire"])
        self._step_bytes = list(tree["step_bytes"])
        if self._stepper is not None:
            self._stepper.restore(tree["stepper"])
        self.round_opened = tree["round_opened"]
        self._starting = [_restored(entry) for entry in tree["starting"]]
        waiting = [_restored(entry) for entry in tree["round"]]
        self._round = {entry.session.seat: entry for entry in waiting}

    def _open_gate(self) -> list[Answer]:
        going = [entry for entry in self._starting if self.state.may_start(entry.session)]
        answers = []
        for entry in going:
            self._starting.remove(entry)
            self.center.greet(entry.session.seat, entry.vector)
            size = self._wire.greet(entry.session.seat, entry.vector)
            message = self.state.start(entry.session)
            answers.append(Answer(entry.session, entry.vector, message, size))
        return answers

    def _close_round(self, now: float) -> list[Answer]:
        if not self._round or len(self._round) < self.state.needed(self._round):
            return []
        entries = [self._round[seat] for seat in sorted(self._round)]
        self._round.clear()
        self.round_opened = None
        arrivals = [entry.arrival for entry in entries if entry.arrival]
        infos = [self.state.info(arrival) for arrival in arrivals]
        self.center.combine([entry.vector for entry in entries], infos)
        if self._stepper is None:
            sizes = [self._wire.reply(entry.session.seat, entry.vector) for entry in entries]
        else:
            sizes = [self._step(self._stepper, entries)] * len(entries)
        replies, _ = self.state.fold(arrivals, now, sizes)
        return [
            Answer(entry.session, entry.vector, reply, size)
            for entry, reply, size in zip(entries, replies, sizes, strict=True)
        ]

    def _step(self, stepper: Stepper, entries: list[_Waiting]) -> int:
        """Make the step of a round, for all workers; return the bytes of its mean gradient."""
        gradient = entries[0].vector
        size = self._wire.send(gradient)
        self._step_bytes.append(size)
        stepper.step(gradient, self.center.vector)
        for entry in entries:
            self.center.repeat(entry.vector, entry.session.seat)
        return size

    def _repeat(self, session: Session, vector: Vector, message: Exchanged) -> Answer:
        """Answer a commit that is not folded."""
        self.center.repeat(vector, session.seat)
        # A worker that makes the steps itself is told of those by themselves.
        size = 0 if self._stepper else self._wire.reply(session.seat, vector)
        return Answer(session, vector, message, size)


def _saved(entry: _Waiting) -> dict[str, Any]:
    arrival = entry.arrival
    told = None if arrival is None else [msgspec.to_builtins(arrival.commit), arrival.bytes_up]
    return {"session": asdict(entry.session), "vector": entry.vector, "arrival": told}


def _restored(saved: Mapping[str, Any]) -> _Waiting:
    session = Session(**saved["session"])
    if saved["arrival"] is None:
        return _Waiting(session, saved["vector"])
    commit, bytes_up = saved["arrival"]
    return _Waiting(
        session, saved["vector"], Arrival(session, msgspec.convert(commit, WindowCommit), bytes_up)
    )
