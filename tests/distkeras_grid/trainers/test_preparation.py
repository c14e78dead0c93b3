from types import SimpleNamespace

import numpy as np
import pytest

from distkeras_grid.errors import ServerUnreachableError
from distkeras_grid.history import History
from distkeras_grid.parameter_server.messages import FetchCenter
from distkeras_grid.parameter_server.server_core import ServerCore
from distkeras_grid.parameter_server.server_events import DRIVER, ReceivedMessage
from distkeras_grid.trainers.preparation import TrainingJob
from tests.records import window_record
from tests.specs import make_settings

#: Of a run that has folded nothing there is nothing to keep.
WINDOW = window_record()


class Server:
    """As the driver's end of a server, without one."""

    def __init__(self, core):
        self.core = core

    def reconnect(self):
        pass

    def center(self, seat=0):
        (told,) = self.core.handle(ReceivedMessage(DRIVER, FetchCenter(None, seat)), 0.0)
        return told.vector


@pytest.fixture
def failing_run():
    """A run that has trained, and keeps the center if it fails."""
    settings, history = make_settings(rows=1), History()
    history.add(WINDOW)
    observer = SimpleNamespace(load_state=lambda center: center)
    return TrainingJob(None, settings, None, [], observer, history, {}, 0.0)


def test_the_center_is_kept_if_only_a_worker_could_not_reach_the_server(failing_run):
    spec = failing_run.spec
    core = ServerCore(spec, np.ones(spec.size, np.float32))
    with pytest.raises(ServerUnreachableError), failing_run._leaving(Server(core)):
        raise ServerUnreachableError("No way to 10.0.0.7. Worker 0 was given up for that.")
    assert failing_run.left is not None


def test_a_server_that_has_died_is_asked_for_nothing(failing_run):
    """One that hangs would be waited for once more."""
    failing_run.lost_server = True
    with pytest.raises(ServerUnreachableError) as raised, failing_run._leaving(None):
        raise ServerUnreachableError("The parameter server process ended with exit code 1.")
    assert failing_run.left is None
    assert not hasattr(raised.value, "__notes__")


@pytest.mark.parametrize("fails", ["end", "describe"])
def test_what_fails_after_the_training_does_not_take_the_trained_model_away(monkeypatch, fails):
    def fail(*_):
        raise ValueError(fails)

    settings = make_settings(rows=1)
    model = SimpleNamespace(optimizer=SimpleNamespace(use_ema=False))
    observer = SimpleNamespace(finalize=lambda _: model, end=lambda: None)
    if fails == "end":
        observer.end = fail
    else:
        monkeypatch.setattr(TrainingJob, "_describe", fail)
    run = TrainingJob(None, settings, None, [], observer, History(), {}, 0.0)
    center = np.ones(settings.spec.size, np.float32)
    with pytest.raises(ValueError, match=fails):
        run._conclude(center, [], 0, None)
    assert run.left is model
