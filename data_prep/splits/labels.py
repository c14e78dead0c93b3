"""Which class, and which group, each image belongs to."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from data_prep.splits.csv_table import read_csv
from distkeras_grid.errors import ConfigurationError, LabelError

FOLDER, REGEX, PATH = "folder", "regex:", "path:"


@dataclass(frozen=True, slots=True)
class Annotation:
    """The label, group and split of one image, as a table or a rule gives them."""

    label: str  # Name of the class
    group: str | None = None  # Images of one group, such as one specimen, stay in one split
    split: str | None = None  # Split of the image, where somebody has chosen it


def annotate(
    sources: Sequence[str],
    rule: str,
    read_text: Callable[[str], str],
    group: str | None = None,
) -> dict[str, Annotation]:
    """Find the class, the group and the chosen split of each image.

    Examples
    --------
    >>> rule = r"regex:^[0-9]+_(?P<label>[a-z]+)"
    >>> annotate(["a/065_lentils.jpg"], rule, read_text=str)["a/065_lentils.jpg"].label
    'lentils'
    """
    annotations, reasons = annotate_each(sources, rule, read_text, group)
    for reason in reasons.values():
        raise LabelError(reason)
    return annotations


def annotate_each(
    sources: Sequence[str],
    rule: str,
    read_text: Callable[[str], str],
    group: str | None = None,
) -> tuple[dict[str, Annotation], dict[str, str]]:
    """Do what `annotate` does, but return reasons for images that cannot be labelled."""
    label_of = _labeller(rule, read_text, group)
    annotations: dict[str, Annotation] = {}
    reasons: dict[str, str] = {}
    for source in sources:
        try:
            annotations[source] = label_of(source)
        except LabelError as error:
            reasons[source] = str(error)
    reasons |= _ambiguous_names(list(annotations), label_of.table, rule)
    return {
        path: annotation for path, annotation in annotations.items() if path not in reasons
    }, reasons


def parse_rule(rule: str) -> tuple[int | None, re.Pattern[str] | None]:
    """Return the folder level or the pattern by which a rule finds labels; for a table neither.

    Examples
    --------
    >>> parse_rule("folder:1"), parse_rule("folder")[0], parse_rule("labels.csv")
    ((1, None), -1, (None, None))
    """
    for prefix in (REGEX, PATH):
        if rule.startswith(prefix):
            return None, compile_pattern(rule.removeprefix(prefix), "label")
    if rule == FOLDER:
        return -1, None
    if not rule.startswith(f"{FOLDER}:"):
        return None, None
    level = rule.removeprefix(f"{FOLDER}:")
    if not re.fullmatch(r"-?[1-9]\d?", level):
        raise ConfigurationError(
            "labels folder:N needs a number of a level: 1 for the first folder below the input, -1 "
            f"for the one in which an image lies. Received: {rule!r}."
        )
    return int(level), None


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


def differing_by_case(what: str, names: Iterable[str]) -> list[str]:
    """Return a line for each set of names that only upper and lower case tell apart.

    Examples
    --------
    >>> differing_by_case("classes", ["benign", "Benign", "other"])
    ["  the classes 'Benign' and 'benign' differ by case alone, and count as different"]
    """
    same: dict[str, set[str]] = {}
    for name in names:
        same.setdefault(name.casefold(), set()).add(name)
    return [
        f"  the {what} {' and '.join(map(repr, sorted(each)))} differ by case alone, and count as "
        "different"
        for _, each in sorted(same.items())
        if len(each) > 1
    ]


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
    """Read a table of labels."""
    columns, rows = read_csv(text, path, LabelError)
    if not {"file", "label"} <= set(columns):
        raise LabelError(
            f"{path} must begin with a line naming the columns file and label, and optionally "
            f"split and group, with commas. Received: {', '.join(map(repr, columns)) or 'none'}."
        )
    table: dict[str, Annotation] = {}
    for number, row in rows:
        at = f"{path}, line {number}"
        file, label = row["file"], row["label"]
        if not file or not label or None in row:
            raise LabelError(f"{at}: file or label is missing, or there are too many: {row}.")
        file = unicodedata.normalize("NFC", file)
        if file in table:
            raise LabelError(f"{at}: {file} stands there twice.")
        group, split = row.get("group") or None, row.get("split") or None
        table[file] = Annotation(
            _clean(label, "label", at),
            None if group is None else _clean(group, "group", at),
            None if split is None else _clean(split, "split", at),
        )
    return table


@dataclass(frozen=True)
class _Labeller:
    """Applies a rule to one image; raises `LabelError` where the rule gives no label."""

    rule: str
    level: int | None
    label: re.Pattern[str] | None
    table: Mapping[str, Annotation]
    group: re.Pattern[str] | None

    def __call__(self, source: str) -> Annotation:
        path = unicodedata.normalize("NFC", source)
        annotation = self._annotation(path)
        if self.group is None:
            return annotation
        return Annotation(annotation.label, _match(self.group, "group", path), annotation.split)

    def _annotation(self, source: str) -> Annotation:
        name = source.rsplit("/", 1)[-1]
        if self.level is not None:
            return Annotation(_folder(source, self.level))
        if self.label is not None:
            text = source if self.rule.startswith(PATH) else name
            return Annotation(_match(self.label, "label", text))
        # A table made beside the images names files; one made above them names paths.
        annotation = self.table.get(source) or self.table.get(name)
        if annotation is None:
            raise LabelError(
                f"{self.rule} has no line for {source}. Add one (column file: the path below the "
                "input folder, or the file name), or leave the image out by --glob."
            )
        return annotation


def _labeller(rule: str, read_text: Callable[[str], str], group: str | None) -> _Labeller:
    level, label = parse_rule(rule)
    table: Mapping[str, Annotation] = {}
    if level is None and label is None:
        table = parse_table(read_text(rule), rule)
    if group is not None and any(annotation.group is not None for annotation in table.values()):
        raise ConfigurationError(f"groups come from {rule} and from --group {group}. Give one.")
    grouping = None if group is None else compile_pattern(group, "group")
    return _Labeller(rule, level, label, table, grouping)


def _ambiguous_names(
    sources: Sequence[str], table: Mapping[str, Annotation], path: str
) -> dict[str, str]:
    """Return the images that share a file name which the table uses, and why they have no label."""
    by_name: dict[str, list[str]] = {}
    for source in sources:
        key = unicodedata.normalize("NFC", source)
        name = key.rsplit("/", 1)[-1]
        if key not in table and name in table:
            by_name.setdefault(name, []).append(source)
    return {
        source: f"{path} names {name}, which is {' and '.join(same[:3])}. Write the paths."
        for name, same in by_name.items()
        if len(same) > 1
        for source in same
    }


def _folder(source: str, level: int) -> str:
    *folders, _ = source.split("/")
    if not folders:
        raise LabelError(
            f"{source} lies directly in the input folder, so no folder names its class. Sort the "
            "images into one folder a class, or use --labels regex:PATTERN or --labels FILE.csv."
        )
    if abs(level) > len(folders):
        raise LabelError(
            f"{source} lies in {len(folders)} folders below the input. Received: folder:{level}. "
            "Take another level, or leave the image out by --glob."
        )
    return _clean(folders[level - 1 if level > 0 else level], "folder", source)


def _clean(text: str, what: str, at: str) -> str:
    """Return a name as Unicode NFC; refuse one that begins or ends with a space."""
    if text != text.strip():
        raise LabelError(
            f"{at}: a {what} begins or ends with a space. Received: {text!r}. Without it, it is "
            "probably one that exists; remove the space."
        )
    return unicodedata.normalize("NFC", text)


def _match(pattern: re.Pattern[str], name: str, text: str) -> str:
    annotations = pattern.search(text)
    if annotations is None or not annotations.group(name):
        raise LabelError(
            f"{pattern.pattern!r} finds no {name} in {text!r}. Mend the expression, or leave the "
            "image out by --glob."
        )
    return _clean(annotations.group(name), name, text)
