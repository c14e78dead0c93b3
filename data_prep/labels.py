"""Which class, and which group, each image belongs to."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from distkeras_grid.errors import ConfigurationError, LabelError

CSV_COLUMNS = ("file", "label", "split", "group")


@dataclass(frozen=True, slots=True)
class Annotation:
    """What is said about one image.

    Parameters
    ----------
    label : str
        Name of the class.
    group : str or None
        Images of one group, such as one specimen, stay in one split.
    split : str or None
        The split, where somebody has chosen it.
    """

    label: str
    group: str | None = None
    split: str | None = None


def annotate(
    sources: Sequence[str],
    rule: str,
    read_text: Callable[[str], str],
    group: str | None = None,
) -> dict[str, Annotation]:
    """Find the class, the group and the chosen split of each image.

    Parameters
    ----------
    sources : sequence of str
        Paths of the images below the input folder, with ``/``.
    rule : str
        ``"folder"``: the name of the folder in which the image lies. ``"regex:PATTERN"``: what the
        named group ``label`` matches in the file name. Otherwise the path of a CSV file with the
        columns ``file`` and ``label`` and, optionally, ``split`` and ``group``.
    read_text : callable
        Reads the CSV file.
    group : str, optional
        Regular expression that is searched in the path; images for which its named group
        ``group`` matches the same text are one group.

    Raises
    ------
    LabelError
        If an image has no label, or two.
    ConfigurationError
        If a pattern cannot be used.

    Examples
    --------
    >>> rule = r"regex:^[0-9]+_(?P<label>[a-z]+)"
    >>> annotate(["a/065_lentils.jpg"], rule, read_text=str)["a/065_lentils.jpg"].label
    'lentils'
    """
    if rule == "folder":
        found = {source: Annotation(_folder(source)) for source in sources}
    elif rule.startswith("regex:"):
        pattern = compile_pattern(rule.removeprefix("regex:"), "label")
        found = {
            source: Annotation(_match(pattern, "label", source.rsplit("/", 1)[-1]))
            for source in sources
        }
    else:
        found = _from_table(sources, parse_table(read_text(rule), rule), rule)
    if group is None:
        return found
    if any(annotation.group is not None for annotation in found.values()):
        raise ConfigurationError(f"groups come from {rule} and from --group {group}; give one")
    pattern = compile_pattern(group, "group")
    return {
        source: Annotation(said.label, _match(pattern, "group", source), said.split)
        for source, said in found.items()
    }


def class_names(labels: Sequence[str]) -> tuple[str, ...]:
    """Return the names of the classes in the order of their numbers.

    Examples
    --------
    >>> class_names(["10", "9", "10"]), class_names(["b", "a"])
    (('9', '10'), ('a', 'b'))
    """
    names = set(labels)
    if all(name.isdecimal() for name in names):
        return tuple(sorted(names, key=lambda name: (int(name), name)))
    return tuple(sorted(names))


def compile_pattern(pattern: str, name: str) -> re.Pattern[str]:
    """Compile a regular expression that must have the named group `name`."""
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise ConfigurationError(f"{pattern!r} is no regular expression: {error}") from error
    if name not in compiled.groupindex:
        raise ConfigurationError(
            f"the regular expression {pattern!r} needs a group named {name!r}, such as "
            f"(?P<{name}>[a-z]+)"
        )
    return compiled


def parse_table(text: str, path: str) -> dict[str, Annotation]:
    """Read a table of labels.

    Parameters
    ----------
    text : str
        CSV with a header: ``file,label`` and, optionally, ``split`` and ``group``.
    path : str
        Named in errors.

    Returns
    -------
    dict of str to Annotation
        By the content of the column ``file``.
    """
    reader = csv.DictReader(io.StringIO(text.removeprefix("\ufeff")))
    columns = reader.fieldnames or ()
    if "file" not in columns or "label" not in columns or set(columns) - set(CSV_COLUMNS):
        raise LabelError(
            f"{path} must begin with a line naming the columns file and label, and optionally "
            f"split and group; it has {', '.join(columns) or 'none'}"
        )
    table: dict[str, Annotation] = {}
    for row in reader:
        file, label = row["file"], row["label"]
        if not file or not label or None in row:
            raise LabelError(f"{path}, line {reader.line_num}: file or label is missing: {row}")
        if file in table:
            raise LabelError(f"{path}, line {reader.line_num}: {file} stands there twice")
        table[file] = Annotation(label, row.get("group") or None, row.get("split") or None)
    return table


def _from_table(
    sources: Sequence[str], table: Mapping[str, Annotation], path: str
) -> dict[str, Annotation]:
    found = {}
    for source in sources:
        # A table made beside the images names files, one made above them names paths.
        said = table.get(source) or table.get(source.rsplit("/", 1)[-1])
        if said is None:
            raise LabelError(
                f"{path} has no line for {source}; add one (column file: the path below the "
                "input folder, or the file name), or leave the image out by --glob"
            )
        found[source] = said
    _check_names_are_unique(sources, table, path)
    return found


def _check_names_are_unique(
    sources: Sequence[str], table: Mapping[str, Annotation], path: str
) -> None:
    by_name: dict[str, str] = {}
    for source in sources:
        if source in table:
            continue
        name = source.rsplit("/", 1)[-1]
        if name in by_name:
            raise LabelError(
                f"{path} names {name}, which is {by_name[name]} and {source}; write the paths"
            )
        by_name[name] = source


def _folder(source: str) -> str:
    if "/" not in source:
        raise LabelError(
            f"{source} lies directly in the input folder, so no folder names its class; sort the "
            "images into one folder a class, or use --labels regex:PATTERN or --labels FILE.csv"
        )
    return source.split("/")[-2]


def _match(pattern: re.Pattern[str], name: str, text: str) -> str:
    found = pattern.search(text)
    if found is None or not found.group(name):
        raise LabelError(
            f"{pattern.pattern!r} finds no {name} in {text!r}; mend the expression, or leave the "
            "image out by --glob"
        )
    return found.group(name)
