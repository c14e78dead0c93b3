"""CSV tables that a user has written: labels, zones, lists of images."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from distkeras_grid.errors import DataError

#: A line of a table, by column. What stands behind the last column is under None.
Row = dict[str | None, str]


def read_csv(
    text: str, path: str, error: type[DataError]
) -> tuple[Sequence[str], list[tuple[int, Row]]]:
    r"""Read a table with a header.

    Any line ending is accepted, also that of old spreadsheets, and a byte order mark.

    Examples
    --------
    >>> read_csv("file,label\ra.png,\"b, c\"\r", "t.csv", DataError)
    (['file', 'label'], [(2, {'file': 'a.png', 'label': 'b, c'})])
    """
    lines = io.StringIO(text.removeprefix("\ufeff"), newline=None)
    reader = csv.DictReader(lines, strict=True)
    try:
        return reader.fieldnames or (), [(reader.line_num, row) for row in reader]
    except csv.Error as problem:
        raise error(
            f"{path}, line {reader.line_num + 1}: {problem}. Look for a quotation mark without a "
            "second one."
        ) from problem
