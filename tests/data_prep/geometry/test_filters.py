from __future__ import annotations

import pytest

from data_prep.geometry.filters import Condition, parse_filter, passes_filter
from distkeras_grid.errors import ConfigurationError


def test_conditions_are_read_in_their_order():
    assert parse_filter("bg_fraction<0.9, focus >= 1e-2,std>3,outside<=.5") == (
        Condition("bg_fraction", "<", 0.9),
        Condition("focus", ">=", 0.01),
        Condition("std", ">", 3.0),
        Condition("outside", "<=", 0.5),
    )
    assert parse_filter(None) == ()


@pytest.mark.parametrize(
    "text",
    [
        *("", "bg_fraction", "bg_fraction=0.9", "bg_fraction<", "bg_fraction<0.9,", "<0.9"),
        *("label<3", "bg_fraction<nan", "bg_fraction<0.9 or focus>1", "bg_fraction<<1", "mean<-1"),
    ],
)
def test_other_texts_are_refused(text):
    with pytest.raises(ConfigurationError, match="keep"):
        parse_filter(text)


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        *(("mean<10", False), ("mean<=10", True), ("mean>10", False), ("mean>=10", True)),
        *(("mean>=10,std<1", False), ("mean>=10,std<9", True)),
    ],
)
def test_all_conditions_must_hold(text, kept):
    assert passes_filter(parse_filter(text), {"mean": 10.0, "std": 3.0}) is kept
