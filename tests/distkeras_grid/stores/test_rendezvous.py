from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from distkeras_grid.stores.rendezvous import order_mirrors

MIRRORS = ["file:///a", "http://b/x", "http://c", "webhdfs://d:9870/e"]
texts = st.text("ab:/\0", max_size=8)
names = st.lists(texts, min_size=1, max_size=6, unique=True)


@given(names, st.integers(0, 99), texts)
def test_the_order_has_all_mirrors_and_does_not_depend_on_how_they_are_listed(mirrors, node, piece):
    order = order_mirrors(mirrors, node, piece)
    assert sorted(order) == sorted(mirrors)
    assert order_mirrors(reversed(mirrors), node, piece) == order


@given(names, st.integers(0, 99), texts)
def test_without_a_mirror_the_order_of_the_others_stays(mirrors, node, piece):
    order = order_mirrors(mirrors, node, piece)
    for lost in mirrors:
        left = [mirror for mirror in mirrors if mirror != lost]
        assert order_mirrors(left, node, piece) == [each for each in order if each != lost]


def test_M2_each_mirror_is_first_for_its_share_of_the_pieces():
    """Within three deviations of a uniform choice; also second, where the first is down."""
    pieces = [f"shard-{number}" for number in range(4000)]
    for place in (0, 1):
        for node in (0, 1):
            load = Counter(order_mirrors(MIRRORS, node, piece)[place] for piece in pieces)
            expected, deviation = 1000, (4000 * 0.25 * 0.75) ** 0.5
            assert set(load) == set(MIRRORS)
            for count in load.values():
                assert abs(count - expected) < 3 * deviation
