"""What a trainer keeps of a run: its model, whole or not."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from distkeras_grid import DOWNPOUR
from distkeras_grid.trainers import base


class Model:
    """Stands for a Keras model."""

    get_config = fit = None


class Stopped(DOWNPOUR):
    """Its runs end as `ending` says."""

    ending = None

    def execute(self, prepared, _):
        if self.ending is not None:
            raise self.ending
        return prepared.left


@pytest.mark.parametrize("ending", [None, KeyboardInterrupt(), RuntimeError()])
def test_the_model_of_any_end_is_kept(monkeypatch, ending):
    left = Model()
    prepared = SimpleNamespace(
        history=None,
        description=None,
        spec=None,
        checkpointer=None,
        lost_server=False,
        left=left,
        centers=(),
    )
    monkeypatch.setattr(base, "prepare", lambda *_, **__: prepared)
    trainer = Stopped(Model(), progress=False)
    trainer.ending = ending
    if ending is None:
        assert trainer.train("tiles") is left
    else:
        with pytest.raises(type(ending)):
            trainer.train("tiles")
    assert trainer.model is left
