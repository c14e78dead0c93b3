"""The simulated server answers as the real one does that holds locks and waits."""

from __future__ import annotations

import numpy as np
import pytest

from distkeras_grid.parameter_server.compression import from_changes, sparse_bytes
from distkeras_grid.parameter_server.coordinator import Coordinator
from distkeras_grid.parameter_server.messages import Ready, Start
from distkeras_grid.rules import DeepGradientCompression, MeanGradientRule
from distkeras_grid.simulation import run
from distkeras_grid.simulation.server import SimulatedServer
from tests.contracts.test_rules import built
from tests.invariants.test_resume import troubled


class Beside(SimulatedServer):
    """Asks a real server the same, and keeps what both have answered, by session."""

    def __init__(self, settings, vector, *rest):
        super().__init__(settings, vector, *rest)
        self.sparse = settings.compression == "dgc"
        self.known = {}
        self.sizes = set()
        self.real = Coordinator(settings, vector.copy())
        self.pending = {}
        self.answers = 0

    def ready(self, session, rows, vector):
        assert self.real.join(session.seat, session.attempt) == session
        self.pending[session] = self.real.ready(session, Ready(rows, 0.0), vector.copy())
        return self.compared(super().ready(session, rows, vector))

    def exchange(self, arrival, vector, now):
        self.pending[arrival.session] = self.real.exchange(arrival, vector.copy())
        return self.compared(super().exchange(arrival, vector, now))

    def finish(self, session, now):
        self.real.finish(session)
        return self.compared(super().finish(session, now))

    def lose(self, session):
        self.real.lose(session)
        self.pending.pop(session, None)
        super().lose(session)

    def compared(self, answers):
        for answer in answers:
            real = self.pending.pop(answer.session)
            assert real.answer == answer.message
            if self.sparse:
                self.compare_changes(answer, real.vector)
            np.testing.assert_array_equal(real.vector, answer.vector)
            self.answers += 1
        waiting = [real for real in self.pending.values() if real.answer or real.error]
        assert waiting == [], "who waits here waits there"
        return answers

    def compare_changes(self, answer, vector):
        """The real server tells what of the center this seat does not know."""
        seat = answer.session.seat
        if isinstance(answer.message, Start):
            self.known[seat] = vector.copy()
        else:
            assert answer.size == sparse_bytes(vector)
            self.sizes.add(answer.size)
            from_changes(vector, self.known[seat])


#: The real server has the center of steps on workers from those, and not at once.
AT_ONCE = [rule for rule in built() if not rule.values[0].traits.steps_on_workers]


@pytest.mark.parametrize("rule", AT_ONCE)
def test_both_answer_alike(rule, monkeypatch):
    """Late, lost and slow workers, a quorum where there are rounds."""
    compare(rule, None, monkeypatch)


@pytest.mark.parametrize("rule", [rule for rule in AT_ONCE if rule.values[0].traits.compressible])
def test_both_tell_the_same_changes(rule, monkeypatch):
    """Of 6 numbers some seats know all but one, and others less."""
    server = compare(rule, DeepGradientCompression(0.84, warm_up_epochs=0), monkeypatch)
    assert min(server.sizes) == 8
    assert max(server.sizes) > 8


def test_steps_take_the_bytes_of_what_the_real_server_keeps_of_them(monkeypatch):
    """Where the workers make the steps the server keeps the gradients, as many as someone asks."""
    monkeypatch.setattr(run, "SimulatedServer", SteppingBeside)
    simulation = troubled(
        MeanGradientRule(), DeepGradientCompression(0.84, momentum=0.5, warm_up_epochs=0)
    )
    simulation.run()
    assert len(simulation._server.compared_steps) > 5


class SteppingBeside(SimulatedServer):
    """Asks a real server for each step as soon as a worker may."""

    def __init__(self, settings, vector, *rest):
        super().__init__(settings, vector, *rest)
        self.real = Coordinator(settings, vector.copy())
        self.compared_steps = set()

    def ready(self, session, rows, vector):
        self.real.join(session.seat, session.attempt)
        self.real.ready(session, Ready(rows, 0.0), vector.copy())
        return super().ready(session, rows, vector)

    def exchange(self, arrival, vector, now):
        version = self.state.version
        self.real.exchange(arrival, vector.copy())
        answers = super().exchange(arrival, vector, now)
        if self.state.version > version:
            gradient = np.empty_like(vector)
            self.real.fetch_step(arrival.session, version, gradient)
            assert self.step_bytes(version, version + 1) == sparse_bytes(gradient)
            self.compared_steps.add(version)
        return answers

    def finish(self, session, now):
        self.real.finish(session)
        return super().finish(session, now)

    def lose(self, session):
        self.real.lose(session)
        super().lose(session)


def compare(rule, compression, monkeypatch):
    monkeypatch.setattr(run, "SimulatedServer", Beside)
    simulation = troubled(rule, compression)
    simulation.run()
    server = simulation._server
    center, version = server.real.fetch_center(None, seat=0)
    assert version == simulation.version
    np.testing.assert_array_equal(center, simulation.center)
    assert server.answers >= 24
    assert server.real.update(0).samples_folded == simulation.samples
    return server
