"""The rate that is told of several clients is that of the time in which all of them exchange."""

from __future__ import annotations

import pytest

from distkeras_grid.errors import TrainingError
from tests.benchmarks.servers import steady_rate


def test_only_what_ends_while_all_exchange_counts():
    early, late = [1.0, 1.5, 2.0, 3.0, 4.0], [2.0, 3.0, 4.0, 9.0]
    assert steady_rate([early, late]) == (2 + 2) / 2
    assert steady_rate([early]) == 4 / 3


def test_clients_that_never_exchange_together_have_no_rate():
    with pytest.raises(TrainingError):
        steady_rate([[1.0, 2.0], [2.0, 3.0]])
