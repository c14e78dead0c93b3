"""A report as one HTML page, to be read without a network."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

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


def format_document(title: str, body: str, more_style: str = "") -> str:
    """Return a page with a title; `body` is HTML."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}{more_style}</style>\n</head>\n"
        f"<body>\n<h1>{escape(title)}</h1>\n{body}\n</body>\n</html>\n"
    )


def format_table(rows: Sequence[Sequence[object]]) -> str:
    """Return a table as HTML; the first row is its head."""

    def cells(row: Sequence[object], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{escape(str(cell))}</{tag}>" for cell in row) + "</tr>"

    lines = [cells(rows[0], "th"), *(cells(row, "td") for row in rows[1:])]
    return '<div class="scroll"><table>\n' + "\n".join(lines) + "\n</table></div>"
