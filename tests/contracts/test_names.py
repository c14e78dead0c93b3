"""Names of the house: the glossary, no two classes of one name, no verb as the name of a thing."""

from __future__ import annotations

import ast
import functools
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("distkeras_grid", "data_prep")
MOST_TERMS = 60
#: Nouns that end like participles.
NOUNS = {"encoding", "listing", "scaling", "reading", "training", "feed", "seed", "speed", "string"}
#: Participles that stood for anything as names of variables; a noun says what a variable holds.
PARTICIPLES = {"told", "given", "found", "kept", "held", "said", "seen", "dealt"}
#: A name with one of them that is right: held-out rows are a term of statistics, and part of the
#: format of a data set.
TERMS = {"held_out"}
#: Words that stood for other things once.
GONE = (
    *("mind", "telling", "hearing", "keeping", "gathering", "judging", "lingering", "meeting"),
    *("alike", "whereabouts", "doing", "night", "care"),
)


def words(name: str) -> list[str]:
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)]


@functools.cache
def modules(*packages: str) -> list[tuple[Path, ast.Module]]:
    if len(packages) != 1:
        return [each for package in packages or PACKAGES for each in modules(package)]
    return [
        (path.relative_to(ROOT), ast.parse(path.read_text(encoding="utf-8")))
        for path in sorted((ROOT / packages[0]).rglob("*.py"))
    ]


def classes() -> Iterator[tuple[str, Path]]:
    for path, tree in modules():
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                yield node.name, path


def test_the_glossary_is_short_and_in_order() -> None:
    text = (ROOT / "distkeras_grid/README.md").read_text(encoding="utf-8")
    table = text.split("## Glossary")[1].split("\n## ")[0]
    rows = re.findall(r"^\| ([a-z -]+) \| (.+) \| (.+) \|$", table, re.MULTILINE)
    terms = [term for term, _, _ in rows if term != "word"]
    assert 40 < len(terms) <= MOST_TERMS
    assert terms == sorted(set(terms))


def test_each_term_is_a_word_of_names() -> None:
    text = (ROOT / "distkeras_grid/README.md").read_text(encoding="utf-8")
    table = text.split("## Glossary")[1].split("\n## ")[0]
    terms = re.findall(r"^\| ([a-z -]+) \|", table, re.MULTILINE)[1:]
    used = {
        word.rstrip("s")
        for _, tree in modules()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef | ast.FunctionDef)
        for word in words(node.name)
    }
    used |= {word.rstrip("s") for path, _ in modules() for word in words(path.stem)}
    unused = [term for term in terms if not {w.rstrip("s") for w in words(term)} <= used]
    assert unused == []


def test_a_name_has_one_class() -> None:
    homes = defaultdict(list)
    for name, path in classes():
        if not name.startswith("_"):
            homes[name].append(str(path))
    assert {name for name, paths in homes.items() if len(paths) > 1} == set()


def test_no_gerund_names_a_module_or_a_class() -> None:
    named = [(path.stem, path) for path, _ in modules()] + list(classes())
    found = [f"{name} in {path}" for name, path in named if _is_gerund(words(name))]
    assert found == []


def _is_gerund(name: list[str]) -> bool:
    return bool(name) and name[-1].endswith("ing") and name[-1] not in NOUNS


def test_words_that_are_gone_stay_away() -> None:
    named = [(path.stem, path) for path, _ in modules()] + list(classes())
    found = [f"{name} in {path}" for name, path in named if set(words(name)) & set(GONE)]
    assert found == []


def bound_names(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Yield the names of variables, parameters, attributes and functions, and their lines."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield name, node.lineno
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.arg(arg=name):
                yield name, node.lineno
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)):
                yield name, node.lineno


def begins_or_ends_with_a_participle(name: str) -> bool:
    parts = name.strip("_").lower().split("_")
    return name not in TERMS and not PARTICIPLES.isdisjoint((parts[0], parts[-1]))


def test_no_variable_is_named_by_a_participle() -> None:
    named = [
        f"{name} in {path}:{line}"
        for path, tree in modules(*PACKAGES, "jobs")
        for name, line in bound_names(tree)
        if begins_or_ends_with_a_participle(name)
    ]
    assert named == []


def test_a_name_with_a_participle_is_seen_wherever_it_is_bound() -> None:
    text = "def told(held, *given):\n    for self.seen in held:\n        rows_kept = 1\n"
    text += "try:\n    pass\nexcept OSError as found:\n    foundation = held_out = 2\n"
    names = [name for name, _ in bound_names(ast.parse(text))]
    wrong = {name for name in names if begins_or_ends_with_a_participle(name)}
    assert wrong == {"told", "held", "given", "seen", "rows_kept", "found"}
