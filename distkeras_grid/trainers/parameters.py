"""Parameters, each declared once, for constructor, documentation, command line and specification.

A class that derives from `Parameterized` declares them as a data class declares its fields::

    batch_size: int = parameter(default=32, least=1, doc="Rows in a batch.", flag="--batch-size N")

Its constructor, its signature and the section *Parameters* of its documentation follow from these
lines, and type checkers read them, too (`typing.dataclass_transform`).
"""

from __future__ import annotations

import ast
import copy
import inspect
import math
import re
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import NoneType, SimpleNamespace, UnionType
from typing import (
    Any,
    ClassVar,
    Literal,
    Self,
    Union,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec

from distkeras_grid.errors import ConfigurationError, UnknownArgumentError
from distkeras_grid.frozen_struct import LARGEST, plain

#: Columns of a line of documentation.
WIDTH = 96
#: Stands for the default of a parameter that must be given.
REQUIRED: Any = inspect.Parameter.empty


@dataclass(eq=False, repr=False)
class Parameter:
    """One parameter of a class: a line of its table."""

    doc: str  # Its documentation
    default: Any = REQUIRED
    # The range of its numbers; those `above` something are finite
    least: float | None = None
    most: float = LARGEST
    above: float | None = None
    # The type as documentation says it, where the annotation says too little; the class then checks
    text: str = ""
    flag: str = ""  # Option of the command line and name of its value, such as ``"--workers N"``
    field: str = ""  # The field of `RunSpec` that it becomes
    kw_only: bool = True  # Whether it is given by keyword only
    init: bool = True  # Whether the constructor takes it

    def __post_init__(self) -> None:
        self.option, _, self.metavar = self.flag.partition(" ")

    def __set_name__(self, owner: type[Any], name: str) -> None:
        self.name = name
        self.annotation: Any = inspect.get_annotations(owner)[name]
        # A type that is said in words may exist for type checkers only, so this is not asked of the
        # class as a whole.
        written = Any if self.text else self.annotation
        alone = SimpleNamespace(__annotations__={name: written})
        names = dict(vars(sys.modules[owner.__module__]))
        self.type: Any = get_type_hints(alone, names, include_extras=True)[name]

    def __repr__(self) -> str:
        return f"<parameter {self.heading}>"

    @property
    def spark_ml_name(self) -> str:
        """The name as Spark ML writes it, such as ``batchSize``."""
        first, *others = self.name.split("_")
        return first + "".join(map(str.capitalize, others))

    @property
    def options(self) -> list[str]:
        """The types and values that are taken, as documentation writes them, without None."""
        return [self.text] if self.text else list(_options(self.type))

    @property
    def heading(self) -> str:
        """The line that begins the parameter's documentation."""
        choice = get_origin(self.type) is Literal and len(self.options) > 1
        kind = f"{{{', '.join(self.options)}}}" if choice else _joined(self.options)
        return f"{self.name} : {kind}{self.default_text}"

    @property
    def default_text(self) -> str:
        """What documentation says of the default."""
        if self.default is REQUIRED:
            return ""
        return ", optional" if self.default is None else f", default {_literal(self.default)}"

    @property
    def summary(self) -> str:
        """The first sentence of the documentation, as plain text."""
        return re.split(r"(?<=\w)\.\s", f"{self.doc} ")[0].replace("`", "").replace("*", "")

    def check(self, value: Any) -> Any:
        """Return a value as plain Python; refuse one of another type, or out of the range."""
        value = plain({"": value})[""]
        if self.type is Any:
            return value
        try:
            checked = msgspec.convert(value, self.type)
        except msgspec.ValidationError as error:
            raise self._refusal(value) from error
        number = isinstance(checked, int | float) and not isinstance(checked, bool)
        if number and not self._within(checked):
            raise self._refusal(value)
        return checked

    def _within(self, number: float) -> bool:
        # NaN is in no range.
        if self.above is not None:
            return self.above < number < math.inf
        return (-math.inf if self.least is None else self.least) <= number <= self.most

    def _refusal(self, value: Any) -> ConfigurationError:
        words = [
            self._in_range(word) if word.endswith("number") else word
            for word in _type_words(self.type)
        ]
        return ConfigurationError(f"{self.name} must be {_joined(words)}. Received: {value!r}.")

    def _in_range(self, number: str) -> str:
        if self.above is not None:
            return f"a finite number above {self.above:g}"
        if self.least is None:
            return number
        most = "" if self.most == LARGEST else f" and at most {self.most:g}"
        return f"{number} of at least {self.least:g}{most}"


def parameter(**columns: Any) -> Any:
    """Declare a parameter of a class; the columns are the fields of `Parameter`."""
    return Parameter(**columns)


@dataclass_transform(eq_default=False, kw_only_default=True, field_specifiers=(parameter,))
class Parameterized:
    """Base of classes that declare parameters.

    The constructor stores the very objects that it is given, and calls ``__post_init__``.
    """

    #: All parameters of the constructor by name: positional ones, then those of the class itself,
    #: then those of its bases.
    parameters: ClassVar[Mapping[str, Parameter]] = {}

    def __init__(self, *positional: Any, **named: Any) -> None:
        kind = type(self)
        if unknown := [name for name in named if name not in self.parameters]:
            raise UnknownArgumentError.among(kind.__name__, unknown, self.parameters)
        arguments = inspect.signature(kind).bind(*positional, **named)
        arguments.apply_defaults()
        for name, value in arguments.arguments.items():
            setattr(self, name, value)
        self.__post_init__()

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        positional = [each for base in reversed(cls.__mro__) for each in _declared(base)]
        names = [each.name for each in positional if not each.kw_only]
        names += [each.name for base in cls.__mro__ for each in _declared(base)]
        latest = {name: getattr(cls, name) for name in names}
        cls.parameters = {name: each for name, each in latest.items() if each.init}
        cls.__signature__ = _signature(cls.parameters)  # type: ignore[attr-defined]
        if cls.__doc__:
            cls.__doc__ = _with_parameters(inspect.cleandoc(cls.__doc__), cls.parameters)

    def __post_init__(self) -> None:
        """Do what is left of the construction."""

    def get_params(self) -> dict[str, Any]:
        """Return all arguments by name, as they were given."""
        return {name: getattr(self, name) for name in self.parameters}

    def replace(self, **values: Any) -> Self:
        """Return a copy with other values of some parameters."""
        other = copy.copy(self)
        for name, value in values.items():
            setattr(other, name, value)
        return other

    def checked(self) -> Self:
        """Return a copy with plain values; refuse the first one of another type or range."""
        return self.replace(
            **{name: each.check(getattr(self, name)) for name, each in self.parameters.items()}
        )


def _declared(kind: type[Any]) -> list[Parameter]:
    return [each for each in vars(kind).values() if isinstance(each, Parameter)]


def _signature(parameters: Mapping[str, Parameter]) -> inspect.Signature:
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return inspect.Signature(
        [
            inspect.Parameter(
                name,
                kinds[each.kw_only],
                default=each.default,
                annotation=each.annotation if each.text else each.type,
            )
            for name, each in parameters.items()
        ]
    )


def _with_parameters(doc: str, parameters: Mapping[str, Parameter]) -> str:
    """Return documentation with the section *Parameters*, before the other sections."""
    section = ["Parameters\n----------"]
    for each in parameters.values():
        indent = " " * 4
        body = textwrap.fill(each.doc, WIDTH, initial_indent=indent, subsequent_indent=indent)
        section.append(f"{each.heading}\n{body}")
    first = re.search(r"^\w+\n-{3,}$", doc, re.MULTILINE)
    at = len(doc) if first is None else first.start()
    parts = (doc[:at].rstrip(), "\n".join(section), doc[at:])
    return "\n\n".join(part for part in parts if part)


def _options(kind: Any) -> Iterator[str]:
    """Yield what a type takes, as documentation writes it."""
    origin = get_origin(kind)
    if origin in (Union, UnionType):
        for option in get_args(kind):
            yield from _options(option)
    elif origin is Literal:
        yield from map(_literal, get_args(kind))
    elif origin is not None:
        parts = " to ".join(each.__name__ for each in get_args(kind))
        yield f"{origin.__name__.lower()} of {parts}"
    elif kind is not NoneType:
        yield "object" if kind is Any else kind.__name__


def _literal(value: Any) -> str:
    """Return a value as documentation writes it: text in double quotes, numbers without zeros."""
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, float):
        value = ast.literal_eval(f"{value:g}")
    return repr(value)


def _joined(words: list[str]) -> str:
    """Return words with commas and an "or" between."""
    return f"{', '.join(words[:-1])} or {words[-1]}" if len(words) > 1 else words[0]


_WORDS = {int: "a whole number", float: "a number", str: "a text"}


def _type_words(kind: Any) -> Iterator[str]:
    """Yield what a parameter of this type takes, in words."""
    origin = get_origin(kind)
    if origin in (Union, UnionType):
        for option in sorted(get_args(kind), key=lambda each: each is NoneType):
            yield from _type_words(option)
    elif origin is Literal:
        yield from map(repr, get_args(kind))
    elif kind is bool:
        yield from ("True", "False")
    elif kind is NoneType:
        yield "None"
    elif kind in _WORDS:
        yield _WORDS[kind]
    else:
        yield "a list" if origin in (list, tuple, Sequence) else "a mapping"
