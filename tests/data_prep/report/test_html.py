"""The report of a run: figures that add up, one page that needs no other file, pictures in it."""

from __future__ import annotations

import base64
import json
import re
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser
from io import BytesIO

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from data_prep.geometry.grid import TileSpec
from data_prep.geometry.tile_layout import count_tiles
from data_prep.geometry.tiler import iter_tiles
from data_prep.report.html import (
    MAX_REPORTS,
    SHOWN_REASONS,
    ReportImage,
    RunSummary,
    count,
    grid_angles,
    outdated,
    render,
)
from data_prep.report.samples import (
    IMAGE_SQUARES,
    PLACES,
    REPORT_SQUARES,
    choose_drawn,
    choose_images,
    choose_tiles,
    squares_of,
    thumbnail,
)
from distkeras_grid.dataset.manifest import TILED, ImageRecord

SPEC = TileSpec(32, angles=[0, 40, 90])


def source(path, split="train", size=(100, 80)):
    label = path.split("/")[0]
    fields = dict(zip(("width", "height"), size, strict=True))
    return ImageRecord(path, TILED, count_tiles(*size, SPEC), label=label, split=split, **fields)


def figures(**more):
    tables = ("images", "tiles", "angles", "left_out", "copies", "without_tiles")
    values = {name: {} for name in tables}
    numbers = {"new": 3, "changed": 0, "unchanged": 1, "relabelled": 2, "removed": 0, "excluded": 0}
    sizes = {"read_bytes": 5_000_000, "written_bytes": 20_000_000, "total_tiles": 40}
    run = {"began": "2026-11-22T02:00:00+00:00", "seconds": 10.0, "input": "raw", "output": "tiles"}
    return RunSummary(**{**values, **numbers, **sizes, **run, **more})


def test_counts_add_up():
    sources = [source("a/0"), source("a/1", "test"), source("b/0", size=(34, 33))]
    images, tiles = count(sources)
    assert images == {"train": {"a": 1, "b": 1}, "test": {"a": 1}}
    assert tiles["test"] == {"a": sources[1].tiles}


class Links(HTMLParser):
    """All that a browser would load, and all text."""

    def __init__(self):
        super().__init__()
        self.links, self.text, self.tags = [], [], Counter()

    def handle_starttag(self, tag, attrs):
        self.tags[tag] += 1
        self.links += [value for name, value in attrs if name in ("src", "href")]

    def handle_data(self, data):
        self.text.append(data)


@pytest.fixture
def page():
    pixels = np.random.default_rng(1).integers(0, 65536, (80, 100, 1), dtype=np.uint16)
    hostile = "a/<script>alert(1)</script>.png"
    tiles = iter_tiles(np.zeros((80, 100), np.uint8), SPEC, grid_angles(SPEC))
    squares: dict = {}
    for tile in tiles:
        squares.setdefault(tile.angle, []).append(tile.corners())
    squares = {angle: np.array(corners) for angle, corners in squares.items()}
    shown = ReportImage(
        {"a": [thumbnail(pixels)] * 3}, {hostile: thumbnail(pixels)}, {hostile: squares}
    )
    told = figures(
        left_out={hostile: "it is <b>cut</b>"},
        tiles={"train": {"a": 5}},
        images={"train": {"a": 1}},
        angles={"0": 4, "40": 0, "90": 4},
        without_tiles={hostile: 1},
    )
    return render(told, shown, {hostile: source(hostile)}, grid_angles(SPEC))


def test_the_page_needs_no_other_file_and_runs_nothing(page):
    links = Links()
    links.feed(page)
    assert links.links
    assert all(link.startswith("data:image/jpeg;base64,") for link in links.links)
    assert links.tags["script"] == links.tags["b"] == 0
    assert "it is <b>cut</b>" in "".join(links.text)
    for link in links.links:
        Image.open(BytesIO(base64.b64decode(link.partition(",")[2]))).verify()


def test_the_grid_shows_each_tile_of_the_first_angle_and_of_the_first_oblique_one(page):
    assert grid_angles(SPEC) == [0.0, 40.0]
    tiles = list(iter_tiles(np.zeros((80, 100), np.uint8), SPEC))
    for kind, angle in (("flat", 0.0), ("turned", 40.0)):
        (outlines,) = re.findall(rf'class="{kind}" d="([^"]+)"', page)
        drawn = [
            [tuple(map(float, at.split(","))) for at in shape.strip("M").split()]
            for shape in outlines.split("z")[:-1]
        ]
        expected = [tile.corners() for tile in tiles if tile.angle == angle]
        assert len(drawn) == len(expected) > 0
        np.testing.assert_allclose(drawn, expected, atol=0.51)


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (
            {"ignored_splits": {"a/<0>.png": "the table says test"}},
            ["a/<0>.png", "says test"],
        ),
        (
            {"alike": [{"one": "a/0", "other": "b/<7>", "why": "29 features agree"}]},
            ["b/<7>", "29 features agree"],
        ),
    ],
)
def test_page_and_file_have_splits_that_are_not_taken_and_pairs(more, told):
    """They were told on the terminal only, and a night has none."""
    pages = []
    for each in (figures(**more), figures()):
        read = Links()
        read.feed(render(each, ReportImage(), {}, [0.0]))
        pages.append(" ".join(read.text))
    assert all(part in pages[0] and part not in pages[1] for part in told)
    ((name, value),) = more.items()
    assert json.loads(figures(**more).to_json())[name] == value


def test_long_lists_are_cut_on_the_page_and_whole_in_the_file():
    pairs = [{"one": f"a/{i:04}", "other": "b/0", "why": "x"} for i in range(SHOWN_REASONS + 7)]
    told = figures(alike=pairs)
    page = render(told, ReportImage(), {}, [0.0])
    assert "a/0000" in page
    assert f"a/{SHOWN_REASONS:04}" not in page
    assert "7 more" in page
    assert len(json.loads(told.to_json())["alike"]) == SHOWN_REASONS + 7


def test_a_thumbnail_is_small_and_uses_all_of_the_range():
    deep = np.linspace(100, 4000, 1000 * 600).reshape(600, 1000, 1).astype(np.uint16)
    picture = np.asarray(Image.open(BytesIO(thumbnail(deep))))
    assert picture.shape == (216, 360)
    assert picture.min() < 8
    assert picture.max() > 247
    colour = np.zeros((50, 40, 3), np.uint8)
    assert Image.open(BytesIO(thumbnail(colour))).size == (40, 50)


def test_images_and_tiles_are_chosen_in_turn():
    labels = {f"{label}/{i}": label for label in "abc" for i in range(20)}
    assert Counter(labels[path] for path in choose_images(labels, 6)) == {"a": 2, "b": 2, "c": 2}
    assert choose_images({}, 6) == []
    rows = [("a", f"s{i % 3}", f"{i:03}") for i in range(30)]
    chosen = choose_tiles(rows, 6)
    assert Counter(int(tile) % 3 for tile in chosen["a"]) == {0: 2, 1: 2, 2: 2}


def test_reports_of_the_newest_nights_stay_and_other_files_always():
    """The folder grew for ever."""
    times = [f"2026-{1 + i // 28:02}-{1 + i % 28:02}T020000Z" for i in range(MAX_REPORTS + 2)]
    files = [f"{time}.{kind}" for time in times for kind in ("json", "html")]
    gone = [f"{time}.{kind}" for time in times[:2] for kind in ("html", "json")]
    assert outdated([*reversed(files), "thesis.html", f"{times[0]}.txt"]) == gone
    assert outdated(files[4:]) == []
    pages = [f"{times[0]}-images-1.html", f"{times[-1]}-images-1.html"]
    assert outdated([*files, *pages]) == sorted([*gone, pages[0]])


def pictured(number):
    paths = [f"a/{i:03} #1.png" for i in range(number)]
    sources = {path: source(path) for path in paths}
    picture = thumbnail(np.zeros((80, 100, 1), np.uint8))
    # In the order of the choice, not of the names.
    return ReportImage({}, dict.fromkeys(reversed(paths), picture)), sources


def test_the_page_tells_how_many_images_it_does_not_show():
    shown, sources = pictured(20)
    for images, told in ((20, False), (33, True)):
        page = render(figures(images={"train": {"a": images}}), shown, sources, [0.0])
        assert ("20 of 33 images" in page) is told
        captions = re.findall(r"<figcaption>([^:]*):", page)
        assert captions == sorted(sources)


def test_squares_are_the_corners_of_the_tiles_also_of_resampled_images():
    rows, expected = [], {}
    for path, angle, scale in (("a/0", 0.0, 1.0), ("b/0", 40.0, 0.5), ("a/0", 40.0, 1.0)):
        for tile in iter_tiles(np.zeros((80, 100), np.uint8), SPEC, [angle]):
            rows.append((path, angle, tile.src_cx, tile.src_cy, scale))
            # A tile of half the scale shows twice as much of its image.
            centre = np.array([tile.src_cx, tile.src_cy])
            corners = centre + (np.array(tile.corners()) - centre) / scale
            expected.setdefault((path, angle), []).append(corners)
    columns = (list(column) for column in zip(*rows[::-1], strict=True))
    found = squares_of(pa.table(dict(zip(PLACES, columns, strict=True))), SPEC.tile)
    told = {(path, angle): at for path, by in found.items() for angle, at in by.items()}
    assert told.keys() == expected.keys()
    for key, corners in told.items():
        np.testing.assert_allclose(corners, expected[key][::-1], atol=1e-6)
    kinds = [(name, pa.string() if name == "source" else pa.float64()) for name in PLACES]
    assert squares_of(pa.schema(kinds).empty_table(), SPEC.tile) == {}


def test_images_with_too_many_tiles_are_not_drawn():
    """A slide of ten gigapixels has a million squares, which no page can show."""
    small = [replace(source(f"a/{i}"), tiles=2 * IMAGE_SQUARES) for i in range(50)]
    large = replace(source("a/slide"), tiles=3 * IMAGE_SQUARES)
    by_angle = {0.0: 10, 40.0: 10, 80.0: 20}
    drawn = choose_drawn([large, *small], by_angle, [0.0, 40.0])
    assert drawn == [f"a/{i}" for i in range(REPORT_SQUARES // IMAGE_SQUARES)]
    shown = ReportImage({}, {"a/slide": thumbnail(np.zeros((80, 100, 1), np.uint8))})
    page = render(figures(), shown, {"a/slide": large}, [0.0])
    assert page.count("<figure>") == 1
    assert "<path" not in page
