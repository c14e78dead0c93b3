"""What compression asks of a trainer, without Spark."""

from __future__ import annotations

import pytest

from distkeras_grid.errors import ConfigurationError
from distkeras_grid.rules import (
    RULES,
    AccumulatedGradientRule,
    DeepGradientCompression,
    DownpourRule,
    ElasticRule,
    EnergyMatchingRule,
    MeanGradientRule,
    SequentialRule,
)
from distkeras_grid.trainers.compression_checks import (
    check_compressible,
    check_momentum,
)
from distkeras_grid.trainers.defaults import CommunicationWindow

DGC = DeepGradientCompression()
CORRECTED = DeepGradientCompression(momentum=0.9)


@pytest.mark.parametrize("compression", ["bfloat16", DGC])
@pytest.mark.parametrize("rule", [ElasticRule(0.5), SequentialRule()])
def test_weights_are_not_compressed(rule, compression):
    with pytest.raises(ConfigurationError, match="AEASGD sends weights"):
        check_compressible(compression, rule, "AEASGD")


@pytest.mark.parametrize("compression", [None, "bfloat16", DGC])
def test_changes_and_gradients_may_be(compression):
    sending = [rule for rule in RULES.values() if rule.traits.compressible]
    assert len(sending) == 7
    for rule in sending:
        check_compressible(compression, rule, "ADAG")


@pytest.mark.tensorflow
@pytest.mark.parametrize(
    ("rule", "window"),
    [(MeanGradientRule(), 4), (DownpourRule(), 1), (AccumulatedGradientRule(), 1)],
)
def test_momentum_is_corrected_where_commits_are_single_gradients(rule, window):
    import keras

    check_momentum(CORRECTED, rule, CommunicationWindow(window), keras.optimizers.SGD(0.1))
    check_momentum(DGC, rule, CommunicationWindow(16), keras.optimizers.Adam())
    with pytest.raises(ConfigurationError, match=r"momentum itself.*Received: SGD\(momentum=0.9"):
        check_momentum(
            CORRECTED, rule, CommunicationWindow(window), keras.optimizers.SGD(0.1, momentum=0.9)
        )


@pytest.mark.parametrize(
    ("rule", "window"), [(DownpourRule(), 2), (DownpourRule(), None), (EnergyMatchingRule(), 1)]
)
def test_momentum_is_not_corrected_elsewhere(rule, window):
    with pytest.raises(ConfigurationError, match=f"{rule.name}.*momentum=0"):
        check_momentum(CORRECTED, rule, CommunicationWindow(window), None)
