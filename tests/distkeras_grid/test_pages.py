from __future__ import annotations

from html.parser import HTMLParser
from urllib.parse import unquote

import pytest

from distkeras_grid.errors import ConfigurationError
from distkeras_grid.pages import PageSection, format_page, write_page


class Reader(HTMLParser):
    """Collects what a browser would show and load, and finds tags that are not closed."""

    def __init__(self):
        super().__init__()
        self.open, self.text, self.links, self.cells = [], [], [], []

    def handle_starttag(self, tag, attrs):
        self.links += [value for name, value in attrs if name in ("src", "href")]
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)
        if self.open and self.open[-1] in ("th", "td"):
            self.cells.append((self.open[-1], data))


def read(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    reader.close()
    assert reader.open == []
    return reader


def test_what_looks_like_html_is_shown_as_text():
    hostile = '<script>alert("1")</script>&'
    page = format_page(hostile, [PageSection(hostile, hostile, [[hostile]], image='a"b #1.png')])
    reader = read(page)
    assert "<script" not in page
    assert reader.text.count(hostile) == 5  # title, h1, h2, text, cell
    assert [unquote(link) for link in reader.links] == 2 * ['a"b #1.png']
    assert not any("#" in link for link in reader.links)


def test_the_first_row_of_a_table_is_its_head():
    reader = read(format_page("t", [PageSection("s", rows=[["cores", "accuracy"], [2, 0.5]])]))
    assert reader.cells == [("th", "cores"), ("th", "accuracy"), ("td", "2"), ("td", "0.5")]


def test_a_section_shows_only_what_it_is_given():
    page = format_page("t", [PageSection("only a heading")])
    assert "<p>" not in page
    assert "<table>" not in page
    assert "<img" not in page


def test_the_page_needs_no_network():
    page = format_page("t", [PageSection("s", "text", [["a"]], "curves.png")])
    assert "http" not in page
    assert "@import" not in page


def test_the_page_is_written_beside_its_pictures(tmp_path):
    (tmp_path / "curves.png").write_bytes(b"png")
    page = write_page(tmp_path, "Größe", [PageSection("s", image="curves.png")])
    assert page == tmp_path / "index.html"
    assert read(page.read_text(encoding="utf-8")).links == ["curves.png", "curves.png"]


def test_a_picture_that_is_not_there_is_an_error_and_nothing_is_written(tmp_path):
    with pytest.raises(ConfigurationError, match=r"curves\.png; save"):
        write_page(tmp_path, "t", [PageSection("s", image="curves.png")])
    assert list(tmp_path.iterdir()) == []
