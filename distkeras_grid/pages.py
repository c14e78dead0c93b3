"""A report as one HTML page with pictures beside it, to be read without a network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from urllib.parse import quote

from distkeras_grid.errors import ConfigurationError

STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8881; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 76rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.7rem; margin-bottom: 0; }
h2 { font-size: 1.2rem; margin: 2.5rem 0 .3rem; padding-top: 1rem;
  border-top: 1px solid var(--line); }
p { max-width: 46rem; white-space: pre-line; }
img { display: block; max-width: 100%; height: auto; background: #fff; border-radius: 4px; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; margin: 1rem 0; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .9rem; text-align: left; border-bottom: 1px solid var(--line); }
th { background: var(--soft); }
"""


@dataclass(frozen=True, slots=True)
class PageSection:
    """One section of a page: a heading, and below it what is given of text, table and picture."""

    heading: str  # Plain text, as all text here
    text: str = ""  # Lines stay lines
    rows: Sequence[Sequence[object]] = ()  # A table; its first row is the head
    image: str = ""  # File name of a picture in the page's folder


def format_page(title: str, sections: Sequence[PageSection]) -> str:
    """Return the page as HTML.

    Examples
    --------
    >>> page = format_page("Demo", [PageSection("Result", rows=[["accuracy"], [0.93]])])
    >>> "<td>0.93</td>" in page
    True
    """
    return format_document(title, "\n".join(_format_section(section) for section in sections))


def format_document(title: str, body: str, more_style: str = "") -> str:
    """Return a page with a title; `body` is HTML."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}{more_style}</style>\n</head>\n"
        f"<body>\n<h1>{escape(title)}</h1>\n{body}\n</body>\n</html>\n"
    )


def write_page(folder: str | Path, title: str, sections: Sequence[PageSection]) -> Path:
    """Write the page as ``index.html``."""
    folder = Path(folder)
    missing = [s.image for s in sections if s.image and not (folder / s.image).is_file()]
    if missing:
        raise ConfigurationError(
            f"Pictures of the page are not in {str(folder)!r}: {', '.join(missing)}; "
            "save them there first"
        )
    page = folder / "index.html"
    page.write_text(format_page(title, sections), encoding="utf-8")
    return page


def _format_section(section: PageSection) -> str:
    parts = [f"<h2>{escape(section.heading)}</h2>"]
    if section.text:
        parts.append(f"<p>{escape(section.text)}</p>")
    if section.rows:
        parts.append(format_table(section.rows))
    if section.image:
        name, title = quote(section.image), escape(section.heading)
        parts.append(f'<a href="{name}"><img src="{name}" alt="{title}"></a>')
    return "\n".join(parts)


def format_table(rows: Sequence[Sequence[object]]) -> str:
    """Return a table as HTML; the first row is its head."""

    def cells(row: Sequence[object], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{escape(str(cell))}</{tag}>" for cell in row) + "</tr>"

    lines = [cells(rows[0], "th"), *(cells(row, "td") for row in rows[1:])]
    return '<div class="scroll"><table>\n' + "\n".join(lines) + "\n</table></div>"
