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

    Parameters
    ----------
    text : str
        The table.
    path : str
        Named in errors.
    error : type of DataError
        Raised for a table that is not CSV.

    Returns
    -------
    sequence of str
        Names of the columns; empty if there is no header.
    list of (int, dict)
        Number of each line, from 1, and what it holds. A line break in quotation marks counts.

    Raises
    ------
    DataError
        If a quotation mark is missing or stray; it names the line.

    Examples
    --------
    >>> read_csv("file,label\ra.png,\"b, c\"\r", "t.csv", DataError)
    (['file', 'label'], [(2, {'file': 'a.png', 'label': 'b, c'})])
    """
    lines = io.StringIO(text.removeprefix("\ufeff"), newline=None)
    reader = csv.DictReader(lines, strict=True)
    try:
        return reader.fieldnames or (), [(reader.line_num, row) for row in reader]
    except csv.Error as found:
        raise error(
            f"{path}, line {reader.line_num + 1}: {found}. Look for a quotation mark without a "
            "second one."
        ) from found
