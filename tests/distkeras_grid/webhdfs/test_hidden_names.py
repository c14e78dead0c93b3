from __future__ import annotations

from distkeras_grid.webhdfs.hidden_names import hidden_name, is_hidden, leftovers


def test_a_hidden_name_is_short_stands_beside_and_is_known_again() -> None:
    target = "/raw.d/" + "ü" * 120 + ".tif"
    hidden = hidden_name(target, "0badcafe")
    assert hidden.startswith("/raw.d/_")
    assert len(hidden) < 50
    assert is_hidden(hidden)
    assert hidden != hidden_name(target, "0badbeef") != hidden_name("/raw.d/a", "0badbeef")
    assert not any(map(is_hidden, ("/raw/_SUCCESS", "/raw/.a", "_0badcafe.part", target)))


def test_leftovers_are_those_of_the_same_targets() -> None:
    mine = [hidden_name("/raw.d/a", run) for run in ("00000000", "11111111")]
    others = [hidden_name("/raw.d/b", "00000000"), hidden_name("/raw/a", "00000000"), "/raw.d/a"]
    assert leftovers(["/raw.d/a", "/raw.d/c"], [*others, *mine]) == mine
