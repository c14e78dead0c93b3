"""A function named ``module:function``, looked up in the files of its module without an import.

Importing the module would import Keras, which takes seconds, before a misspelt name is reported. If
the files are not enough (a module that creates its names when it runs, or moves its submodules),
the import decides.
"""

from __future__ import annotations

import ast
import difflib
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from itertools import groupby
from pathlib import Path
from zipimport import ZipImportError, zipimporter

from distkeras_grid.errors import ConfigurationError

# A longer source [bytes] takes seconds to parse and is left to the import.
LONGEST = 1_000_000
# With these a module can make any name when it runs.
_ANY_NAME = frozenset(
    {"*", "__getattr__", "__dict__", "exec", "globals", "locals", "modules", "setattr", "vars"}
)


@dataclass(frozen=True)
class SearchPath:
    """Where a driver looks for modules."""

    places: tuple[str, ...]  # Folders, zip files and single modules (``.py``), in their order
    description: str  # The same in words, for messages
    whole: bool = True  # Whether a module that is in none of the places is nowhere


def search_path_here() -> SearchPath:
    """Return where a driver in this process looks for modules."""
    # Modules beside the user's job are found as `python script.py` finds them.
    return SearchPath(
        (str(Path.cwd()), *map(str, sys.path)),
        "in the current directory and where Python finds modules",
    )


def check_function(source: str, path: SearchPath | None = None) -> None:
    """Refuse a function that its module does not have, as far as the files tell."""
    module, _, name = source.partition(":")
    if not all(part.isidentifier() for part in (*module.split("."), name)):
        raise not_a_model(source)
    searched = search_path_here() if path is None else path
    try:
        spec = _find(module, searched.places)
    except _NotInFilesError:
        return
    if spec is None:
        if not searched.whole:
            return
        raise ConfigurationError(
            f"--model {source!r} cannot be found: No module named {module!r}. It is looked for "
            f"{searched.description}."
        )
    known = _names_in(spec)
    if known is not None and name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ConfigurationError(
            f"--model {source!r} cannot be found: module {module!r} has no attribute "
            f"{name!r}.{hint}"
        )


def not_a_model(source: str) -> ConfigurationError:
    """Return the error for a model that is neither a file of Keras 3 nor a function.

    The formats of Keras 2 can be converted: the message has the line that does it.
    """
    text = f"--model takes FILE.keras or module:function. Received: {source!r}."
    if source.lower().endswith((".h5", ".hdf5")):
        new = f"{source.rpartition('.')[0]}.keras"
        text += (
            f' Convert it: python -c "import keras; '
            f"keras.models.load_model('{source}').save('{new}')\""
        )
    elif (Path(source) / "saved_model.pb").exists():
        source = source.rstrip("/")
        text += (
            " It is a SavedModel of Keras 2. Convert it where tf-keras is installed: python -c "
            f"\"import tf_keras; tf_keras.models.load_model('{source}').save('{source}.h5')\"; and "
            f"then: python -c \"import keras; keras.models.load_model('{source}.h5')"
            f".save('{source}.keras')\""
        )
    return ConfigurationError(text)


class _NotInFilesError(Exception):
    """The files do not tell where a module is."""


def _find(module: str, path: Sequence[str]) -> ModuleSpec | None:
    """Return where a module is, None if it is nowhere; its packages are not imported."""
    *packages, last = module.split(".")
    name = ""
    for part in packages:
        name = f"{name}.{part}".lstrip(".")
        package = _ask(name, path)
        if package is None or package.submodule_search_locations is None:
            return None
        if _moves_modules(package):
            raise _NotInFilesError
        path = list(package.submodule_search_locations)
    return _ask(f"{name}.{last}".lstrip("."), path)


def _ask(name: str, path: Sequence[str]) -> ModuleSpec | None:
    """Return where a module is, by the first of these places that has it."""
    for single, places in groupby(path, _is_module):
        if single:
            files = (place for place in places if Path(place).stem == name)
            spec = next((spec_from_file_location(name, file) for file in files), None)
        else:
            spec = _ask_finders(name, list(places))
        if spec is not None:
            return spec
    return None


def _is_module(place: str) -> bool:
    # A folder may have such a name, too.
    return place.endswith(".py") and not Path(place).is_dir()


def _ask_finders(name: str, path: Sequence[str]) -> ModuleSpec | None:
    """Return what the first finder of Python's knows of a module in these folders."""
    for finder in sys.meta_path:
        try:
            spec = finder.find_spec(name, path)
        except KeyError as error:
            # A folder without __init__.py in a package: it is found once the package is imported.
            raise _NotInFilesError from error
        except (ImportError, ValueError, AttributeError):
            continue
        if spec is not None:
            return spec
    return None


def _text_of(spec: ModuleSpec) -> bytes | None:
    """Return the source of a module, None where there is none or it is too long."""
    if spec.origin is None or not spec.origin.endswith(".py"):
        return None
    loader: object = spec.loader
    try:
        if isinstance(loader, zipimporter):
            text = loader.get_data(spec.origin)
        else:
            with Path(spec.origin).open("rb") as file:
                text = file.read(LONGEST + 1)
    except (OSError, ZipImportError):
        return None
    return text if len(text) <= LONGEST else None


def _moves_modules(package: ModuleSpec) -> bool:
    """Return whether a package may have modules that are not in its folders."""
    if package.origin is None:
        # A folder without __init__.py runs nothing.
        return False
    text = _text_of(package)
    return text is None or b"__path__" in text or b"sys.modules" in text


def _names_in(spec: ModuleSpec) -> set[str] | None:
    """Return the names that a module binds anywhere, None where reading cannot tell."""
    text = _text_of(spec)
    if text is None:
        return None
    try:
        nodes = list(ast.walk(ast.parse(text)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        # The last two: expressions that are nested too deeply for Python's compiler.
        return None
    names = set(_defined(nodes))
    return None if _ANY_NAME & (names | set(_used(nodes))) else names


def _used(nodes: Iterable[ast.AST]) -> Iterable[str]:
    for node in nodes:
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr


def _defined(nodes: Iterable[ast.AST]) -> Iterable[str]:
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from ((each.asname or each.name).partition(".")[0] for each in node.names)
