"""Names of columns on the command line."""

from __future__ import annotations


def columns(text: str) -> str | list[str]:
    """Return one name, or a list of the names between commas.

    Examples
    --------
    >>> columns("image"), columns("image,age")
    ('image', ['image', 'age'])
    """
    return text.split(",") if "," in text else text
