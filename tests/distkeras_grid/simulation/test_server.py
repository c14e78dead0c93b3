"""The simulated server answers as the real one does that holds locks and waits."""

from __future__ import annotations

import numpy as np
import pytest

from distkeras_grid.parameter_server.coordinator import Coordinator
from distkeras_grid.parameter_server.messages import Ready
from distkeras_grid.simulation import run
from distkeras_grid.simulation.server import SimulatedServer
from tests.contracts.test_rules import built
from tests.invariants.test_resume import troubled


class Beside(SimulatedServer):
    """Asks a real server the same, and keeps what both have answered, by session."""

    def __init__(self, settings, vector, *steps, **carrying):
        super().__init__(settings, vector, *steps, **carrying)
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
            np.testing.assert_array_equal(real.vector, answer.vector)
            self.answers += 1
        waiting = [real for real in self.pending.values() if real.answer or real.error]
        assert waiting == [], "who waits here waits there"
        return answers


#: The real server has the center of steps on workers from those, and not at once.
AT_ONCE = [rule for rule in built() if not rule.values[0].steps_on_workers]


@pytest.mark.parametrize("rule", AT_ONCE)
def test_both_answer_alike(rule, monkeypatch):
    """Late, lost and slow workers, a quorum where there are rounds."""
    monkeypatch.setattr(run, "SimulatedServer", Beside)
    simulation = troubled(rule)
    simulation.run()
    server = simulation._server
    center, version = server.real.fetch_center(None, seat=0)
    assert version == simulation.version
    np.testing.assert_array_equal(center, simulation.center)
    assert server.answers >= 24
    assert server.real.update(0).samples_folded == simulation.samples
