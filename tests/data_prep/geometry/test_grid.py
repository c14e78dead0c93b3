import itertools
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.geometry.grid import (
    RotatedFrame,
    TileSpec,
    group_by_strip,
    tile_positions,
)
from data_prep.geometry.tile_layout import count_tiles
from distkeras_grid.errors import ConfigurationError, UnknownArgumentError

UNROTATED = TileSpec(angles=[0])


def test_counts_of_the_published_size():
    assert count_tiles(2272, 1704, UNROTATED) == 192
    assert count_tiles(2272, 1704, TileSpec()) == 11_864
    assert count_tiles(2272, 1704, TileSpec(mode="inscribed")) == 6_780
    assert count_tiles(1920, 1080, TileSpec()) == 5_300
    assert count_tiles(2272, 1704, TileSpec.paper()) == 6_972


def test_overlap_in_pixels_and_free_stride():
    assert TileSpec(256, 64).stride == 192
    assert TileSpec(256, 0).stride == TileSpec(256, 0.0).stride == 256
    assert TileSpec(256, -44).stride == 300
    assert TileSpec(256, 0.3).stride == 179
    assert count_tiles(511, 256, TileSpec(256, 1, angles=[0])) == 2


@pytest.mark.parametrize("angle", [0, 30, 45, 90, 135, 200.5])
@pytest.mark.parametrize(("width", "height"), [(500, 500), (300, 700), (256, 256), (362, 363)])
def test_shifted_tiles_reach_from_edge_to_edge(width, height, angle):
    shift = TileSpec(128, 40, [angle], edge="shift")
    frame = RotatedFrame(width, height, angle)
    x, y = frame.to_base(tile_positions(frame, shift), 128)
    # What can be there at all, found by trying every place.
    columns, rows = frame.base_size
    all_x, all_y = np.meshgrid(np.arange(max(0, columns - 127)), np.arange(max(0, rows - 127)))
    fits = np.ones(all_x.shape, dtype=bool)
    for right, down in [(0, 0), (128, 0), (0, 128), (128, 128)]:
        at_x, at_y = frame.base_to_source(all_x + float(right), all_y + float(down))
        fits &= (at_x >= 0) & (at_x <= width) & (at_y >= 0) & (at_y <= height)
    found_rows = np.flatnonzero(fits.any(axis=1))
    assert (x.size > 0) == (found_rows.size > 0)
    if not x.size:
        return
    # A place that fits by less than rounding can be missed at oblique angles.
    assert fits[y, x].all()
    assert abs(y.min() - found_rows[0]) <= 1
    assert abs(y.max() - found_rows[-1]) <= 1
    for row in np.unique(y):
        here = np.flatnonzero(fits[row])
        assert abs(x[y == row].min() - here[0]) <= 1
        assert abs(x[y == row].max() - here[-1]) <= 1
        assert np.diff(np.sort(x[y == row])).max(initial=0) <= 88
    assert np.diff(np.unique(y)).max(initial=0) <= 88


def test_paper_counts_by_angle():
    counts = [
        count_tiles(2272, 1704, TileSpec(mode="inscribed", angles=[angle]))
        for angle in range(0, 91, 5)
    ]
    assert counts == [
        *(192, 150, 117, 108, 88, 80, 72, 72, 64, 64),
        *(64, 72, 72, 80, 88, 108, 108, 120, 144),
    ]


@pytest.mark.parametrize(
    ("width", "height", "tile", "overlap", "expected"),
    [
        (1600, 1200, 256, 0.5, 88),
        (1024, 700, 256, 0.5, 28),
        (255, 1000, 256, 0.5, 0),  # smaller than a tile
        (256, 256, 256, 0.5, 1),
        (512, 256, 256, 0.0, 2),  # divides exactly
        (513, 256, 256, 0.0, 2),  # one pixel more
        (511, 256, 256, 0.0, 1),  # one pixel less
        (511, 256, 256, 1 / 256, 2),  # one pixel of overlap
        (510, 256, 256, 1 / 256, 1),
        (1000, 100, 100, -1.0, 5),  # stride larger than a tile
        (899, 100, 100, -1.0, 4),
    ],
)
def test_counts_at_the_edges(width, height, tile, overlap, expected):
    assert count_tiles(width, height, TileSpec(tile, overlap, angles=[0])) == expected
    assert count_tiles(height, width, TileSpec(tile, overlap, angles=[90])) == expected


def test_grid_is_centred():
    x, y = tile_positions(RotatedFrame(2272, 1704, 0.0), UNROTATED)
    assert (x[0], y[0]) == (48, 20)
    assert (x[-1] + 256, y[-1] + 256) == (2272 - 48, 1704 - 20)


def test_quarter_turns_lose_no_tile_to_rounding():
    for width, height in [(256, 256), (512, 256), (2272, 1704), (333, 777)]:
        turned = TileSpec(overlap=0.0, angles=[90 * (1 + 1e-15), 180, 270.00000000000006])
        assert turned.angles == (90, 180, 270)
        straight = count_tiles(width, height, TileSpec(overlap=0.0, angles=[0]))
        assert count_tiles(width, height, turned) == 3 * straight


@settings(max_examples=60, deadline=None)
@given(
    width=st.integers(20, 500),
    height=st.integers(20, 500),
    tile=st.integers(8, 64),
    overlap=st.floats(-1, 0.8),
    angle=st.floats(0, 359.9),
    mode=st.sampled_from(["inside", "inscribed"]),
)
def test_positions_lie_in_the_frame_and_inside_tiles_in_the_source(
    width, height, tile, overlap, angle, mode
):
    spec = TileSpec(tile, overlap, [angle], mode)
    frame = RotatedFrame(width, height, spec.angles[0])
    x, y = tile_positions(frame, spec)
    assert x.size == count_tiles(width, height, spec)
    assert len(set(zip(x.tolist(), y.tolist(), strict=True))) == x.size
    assert list(zip(y, x, strict=True)) == sorted(zip(y, x, strict=True))
    frame_width, frame_height = frame.size
    assert np.all((x >= 0) & (x + tile <= frame_width) & (y >= 0) & (y + tile <= frame_height))
    base_x, base_y = frame.to_base((x, y), tile)
    back = frame.from_base((base_x, base_y), tile)
    np.testing.assert_array_equal(back, (x, y))
    # Mode "inscribed" rounds the size of its rectangle, and where it begins.
    grace = 0 if mode == "inside" else 1.5
    for right, down in [(0, 0), (tile, 0), (0, tile), (tile, tile)]:
        source_x, source_y = frame.base_to_source(base_x + float(right), base_y + float(down))
        assert np.all((source_x >= -grace) & (source_x <= width + grace))
        assert np.all((source_y >= -grace) & (source_y <= height + grace))


def test_angles_are_sorted_once_each_in_one_turn():
    assert TileSpec(angles=[350, -10, 720, 5.5, np.float32(45)]).angles == (0, 5.5, 45, 350)
    assert len(TileSpec().angles) == 72


def test_json_round_trip():
    spec = TileSpec(128, 0.25, range(0, 90, 30), "inscribed", "lanczos4", include_original=True)
    assert TileSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec
    with pytest.raises(UnknownArgumentError, match="did you mean 'angles'"):
        TileSpec.from_json({"angle": [0]})


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"tile": 0}, "tile .* Received: 0"),
        ({"tile": 12.5}, "Received: 12.5"),
        ({"tile": True}, "Received: True"),
        ({"overlap": 1.0}, "Received: 1.0"),
        ({"overlap": 0.999}, "stride.*Received: 0.999"),
        ({"overlap": float("nan")}, "Received: nan"),
        ({"overlap": "0.5"}, "Received: '0.5'"),
        ({"angles": []}, "angles"),
        ({"angles": "0:360:5"}, "Received: '0:360:5'"),
        ({"angles": [0, float("inf")]}, "inf"),
        ({"angles": 5}, "Received: 5"),
        ({"mode": "outside"}, r"inside, inscribed.*Received: 'outside'"),
        ({"overlap": 256}, "Received: 256"),
        ({"edge": "mirror"}, r"drop, shift, pad.*Received: 'mirror'"),
        ({"edge": "pad", "mode": "inscribed"}, "Received: mode 'inscribed'"),
        ({"include_original": True, "angles": [5]}, "angles without 0"),
        ({"interpolation": "bicubic"}, r"cubic, lanczos4.*Received: 'bicubic'"),
    ],
)
def test_refuses_what_cannot_be_meant(arguments, says):
    with pytest.raises(ConfigurationError, match=says):
        TileSpec(**arguments)


def test_refuses_an_image_without_pixels():
    with pytest.raises(ConfigurationError, match="0x10"):
        count_tiles(0, 10, TileSpec())


@pytest.mark.parametrize("edge", ["drop", "shift", "pad"])
@pytest.mark.parametrize("angle", [0, 20, 45, 110])
def test_strips_have_each_tile_once_and_rows_of_few(angle, edge):
    spec = TileSpec(32, edge=edge)
    positions = tile_positions(RotatedFrame(400, 300, angle), spec)
    strips = list(group_by_strip(positions, spec, columns=4))
    assert len(strips) > 1
    found = sorted((x, y) for strip in strips for x, y in zip(*strip, strict=True))
    assert found == sorted(zip(*positions, strict=True))
    for _, y in strips:
        assert (np.diff(y) >= 0).all()
        # With "shift" the last tile of a row is closer to the one before.
        assert np.unique(y, return_counts=True)[1].max() <= 4 + (edge == "shift")
    assert all(a[0].max() < b[0].min() for a, b in itertools.pairwise(strips))


def test_tiles_that_do_not_overlap_and_none_at_all_are_not_divided():
    spec = TileSpec(32, overlap=0)
    positions = tile_positions(RotatedFrame(400, 300, 0), spec)
    assert [x.size for x, _ in group_by_strip(positions, spec, columns=2)] == [positions[0].size]
    assert not list(group_by_strip(tile_positions(RotatedFrame(8, 8, 0), spec), spec, columns=2))
