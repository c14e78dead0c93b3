from __future__ import annotations

import pytest

from data_prep.geometry.tiling_config import significant_bits


@pytest.mark.parametrize(
    ("highest", "stated", "bits"),
    [
        (0, None, 8),
        (255, None, 8),
        (256, None, 10),
        (4095, None, 12),
        (4096, None, 14),
        (65535, None, 16),
        (300, 12, 12),
        (300, 11, 11),
        (4096, 12, 14),
    ],
)
def test_significant_bits(highest, stated, bits):
    assert significant_bits(highest, stated) == bits
