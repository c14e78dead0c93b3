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
    label_of = _labeller(rule, read_text, group)
    found = {source: label_of(source) for source in sources}
    _check_names_are_unique(sources, label_of.table, rule)
    return found


def annotate_each(
    sources: Sequence[str],
    rule: str,
    read_text: Callable[[str], str],
    group: str | None = None,
) -> tuple[dict[str, Annotation], dict[str, str]]:
    """Find what `annotate` does, and for images of which nothing is said, why; see there.

    Returns
    -------
    found : dict of str to Annotation
    reasons : dict of str to str
        Why all other images cannot be labelled, by path.
    """
    label_of = _labeller(rule, read_text, group)
    found: dict[str, Annotation] = {}
    reasons: dict[str, str] = {}
    for source in sources:
        try:
            found[source] = label_of(source)
        except LabelError as error:
            reasons[source] = str(error)
    _check_names_are_unique(list(found), label_of.table, rule)
    return found, reasons


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
        raise ConfigurationError(f"{pattern!r} is not a regular expression: {error}.") from error
    if name not in compiled.groupindex:
        raise ConfigurationError(
            f"The regular expression {pattern!r} needs a group named {name!r}, such as "
            f"(?P<{name}>[a-z]+)."
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
            f"split and group. It has {', '.join(columns) or 'none'}."
        )
    table: dict[str, Annotation] = {}
    for row in reader:
        file, label = row["file"], row["label"]
        if not file or not label or None in row:
            raise LabelError(f"{path}, line {reader.line_num}: file or label is missing: {row}.")
        if file in table:
            raise LabelError(f"{path}, line {reader.line_num}: {file} stands there twice.")
        table[file] = Annotation(label, row.get("group") or None, row.get("split") or None)
    return table


@dataclass(frozen=True)
class _Labeller:
    """Says what a rule says about one image; raises `LabelError` where it says nothing."""

    rule: str
    label: re.Pattern[str] | None
    table: Mapping[str, Annotation]
    group: re.Pattern[str] | None

    def __call__(self, source: str) -> Annotation:
        said = self._said(source)
        if self.group is None:
            return said
        return Annotation(said.label, _match(self.group, "group", source), said.split)

    def _said(self, source: str) -> Annotation:
        name = source.rsplit("/", 1)[-1]
        if self.rule == "folder":
            return Annotation(_folder(source))
        if self.label is not None:
            return Annotation(_match(self.label, "label", name))
        # A table made beside the images names files, one made above them names paths.
        said = self.table.get(source) or self.table.get(name)
        if said is None:
            raise LabelError(
                f"{self.rule} has no line for {source}. Add one (column file: the path below the "
                "input folder, or the file name), or leave the image out by --glob."
            )
        return said


def _labeller(rule: str, read_text: Callable[[str], str], group: str | None) -> _Labeller:
    table: Mapping[str, Annotation] = {}
    label = None
    if rule.startswith("regex:"):
        label = compile_pattern(rule.removeprefix("regex:"), "label")
    elif rule != "folder":
        table = parse_table(read_text(rule), rule)
    if group is not None and any(said.group is not None for said in table.values()):
        raise ConfigurationError(f"groups come from {rule} and from --group {group}. Give one.")
    grouping = None if group is None else compile_pattern(group, "group")
    return _Labeller(rule, label, table, grouping)


def _check_names_are_unique(
    sources: Sequence[str], table: Mapping[str, Annotation], path: str
) -> None:
    by_name: dict[str, str] = {}
    for source in sources:
        if source in table:
            continue
        name = source.rsplit("/", 1)[-1]
        if name not in table:
            continue
        if name in by_name:
            raise LabelError(
                f"{path} names {name}, which is {by_name[name]} and {source}. Write the paths."
            )
        by_name[name] = source


def _folder(source: str) -> str:
    if "/" not in source:
        raise LabelError(
            f"{source} lies directly in the input folder, so no folder names its class. Sort the "
            "images into one folder a class, or use --labels regex:PATTERN or --labels FILE.csv."
        )
    return source.split("/")[-2]


def _match(pattern: re.Pattern[str], name: str, text: str) -> str:
    found = pattern.search(text)
    if found is None or not found.group(name):
        raise LabelError(
            f"{pattern.pattern!r} finds no {name} in {text!r}. Mend the expression, or leave the "
            "image out by --glob."
        )
    return found.group(name)
