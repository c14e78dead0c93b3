from __future__ import annotations

from html.parser import HTMLParser

from distkeras_grid.pages import format_document, format_table


class Reader(HTMLParser):
    """Collects what a browser would show, and finds tags that are not closed."""

    def __init__(self):
        super().__init__()
        self.open, self.text, self.cells = [], [], []

    def handle_starttag(self, tag, _):
        if tag != "meta":
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
    page = format_document(hostile, format_table([[hostile]]))
    assert "<script" not in page
    assert read(page).text.count(hostile) == 3  # title, h1, cell


def test_the_first_row_of_a_table_is_its_head():
    reader = read(format_table([["cores", "accuracy"], [2, 0.5]]))
    assert reader.cells == [("th", "cores"), ("th", "accuracy"), ("td", "2"), ("td", "0.5")]


def test_the_page_needs_no_network():
    page = format_document("t", format_table([["a"]]))
    assert "http" not in page
    assert "@import" not in page
