"""One lock around the core: passes events to the core and delivers its answers.

Receiving and sending happen outside the lock, in each connection's own buffer. If a request cannot
be answered at once (the start, a synchronous round), the answer is put into the mailbox of the
waiting connection later, by the connection that completes the round.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

import numpy as np

from distkeras_grid.array_tree import Packed
from distkeras_grid.errors import ParameterServerError
from distkeras_grid.parameter_server.membership import ConnectionId
from distkeras_grid.parameter_server.messages import Message, Poll, PutOptimizerState
from distkeras_grid.parameter_server.server_core import ServerCore
from distkeras_grid.parameter_server.server_events import (
    DRIVER,
    Action,
    Disconnect,
    JoinRequest,
    ReceivedMessage,
    RejectWaiter,
    SeatGrant,
    SendReply,
    message_event,
)
from distkeras_grid.parameter_server.spill import spill
from distkeras_grid.spec import RunSpec
from distkeras_grid.weights import Vector

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Coordinator:
    """The core of one run, shared by many threads.

    `center`: the initial weights, shape ``(spec.size,)``, ``float32``; changes in place.
    """

    def __init__(self, spec: RunSpec, center: Vector, saved: Sequence[Packed] = ()) -> None:
        self._core = (
            ServerCore.resumed(spec, saved, spill) if saved else ServerCore(spec, center, spill)
        )
        self._state_section = spec.layout.state_section
        # Bytes of the weights, where the optimizer's state follows them.
        self._weights = 4 * spec.size
        self._lock = threading.Lock()
        # What each connection has to send; any thread may add to it.
        self._mailboxes: dict[ConnectionId, SimpleQueue[SendReply | RejectWaiter]] = {}
        # Whether workers wait for the driver at the end of an epoch.
        self._driver_is_due = threading.Event()
        # One clock for deadlines and history: Unix time that never goes back.
        self._epoch = time.time() - time.monotonic()

    def join(self, seat: int, attempt: int) -> ConnectionId:
        """Give a seat to a connection. Whatever an older connection waits for ends."""
        with self._lock:
            first, *rest = self._core.handle(JoinRequest(seat, attempt), self._now())
            if isinstance(first, SeatGrant):
                self._mailboxes[first.session] = SimpleQueue()
            self._deliver(rest)
        if isinstance(first, RejectWaiter):
            raise first.error
        if not isinstance(first, SeatGrant):
            raise _no_answer(f"attempt {attempt} of worker {seat} to join")
        return first.session

    def post(
        self,
        session: ConnectionId,
        message: Message,
        vector: Vector | None = None,
        bytes_up: int = 0,
        state: NDArray[np.uint8] | None = None,
    ) -> SendReply | None:
        """Pass a worker's message to the core; return the answer, None if it is still to come.

        Then `wait` returns it. `bytes_up`: bytes of the frame.
        """
        if isinstance(message, PutOptimizerState) and state is not None:
            vector, state = state[: self._weights].view(np.float32), state[self._weights :]
        # Outside the lock: it reads the whole section.
        event = message_event(self._state_section, session, message, vector, bytes_up, state)
        with self._lock:
            answer = self._deliver(self._core.handle(event, self._now()), session)
        if isinstance(answer, RejectWaiter):
            raise answer.error
        return answer

    def wait(self, session: ConnectionId, seconds: float) -> SendReply | None:
        """Return what is to be sent to a worker, None if there is nothing in this time."""
        try:
            letter = self._mailboxes[session].get(timeout=seconds)
        except Empty:
            return None
        if isinstance(letter, RejectWaiter):
            raise letter.error
        return letter

    def lose(self, session: ConnectionId) -> None:
        """Record that a connection has ended."""
        with self._lock:
            self._deliver(self._core.handle(Disconnect(session), self._now()))
            del self._mailboxes[session]

    def drive(self, message: Message) -> SendReply:
        """Answer the driver: at once, or as late as the message allows."""
        if isinstance(message, Poll):
            self._driver_is_due.wait(message.patience)
        with self._lock:
            first, *rest = self._core.handle(ReceivedMessage(DRIVER, message), self._now())
            self._deliver(rest)
        if isinstance(first, RejectWaiter):
            raise first.error
        if not isinstance(first, SendReply):
            raise _no_answer(f"the driver's {message!r}")
        return first

    def _deliver(
        self, actions: list[Action], to: ConnectionId | None = None
    ) -> SendReply | RejectWaiter | None:
        """Put answers into the mailboxes of those who wait; return the one to `to`, if any."""
        own = None
        for action in actions:
            if isinstance(action, SeatGrant):
                continue
            if action.to == to:
                own = action
            elif action.to in self._mailboxes:
                self._mailboxes[action.to].put(action)
        if self._core.driver_is_due:
            self._driver_is_due.set()
        else:
            self._driver_is_due.clear()
        return own

    def _now(self) -> float:
        return self._epoch + time.monotonic()


def _no_answer(question: str) -> ParameterServerError:
    """Return the error for a request that the core has not answered, which is a defect."""
    return ParameterServerError(
        f"The parameter server has no answer, which is a defect in it. Received: {question}."
    )
