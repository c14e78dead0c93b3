"""A table of parameters becomes constructor, signature, documentation and checks."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pytest
from numpydoc.docscrape import NumpyDocString

from distkeras_grid.errors import ConfigurationError, UnknownArgumentError
from distkeras_grid.trainers.parameters import Parameterized, parameter

if TYPE_CHECKING:
    from nowhere import Model


class Base(Parameterized):
    """What all have.

    Attributes
    ----------
    total : int
        The sum.
    """

    model: Model = parameter(kw_only=False, text="Model", doc="The model.")
    batch_size: int = parameter(default=32, least=1, flag="--batch-size N", doc="Rows. Of one.")
    window: int | Literal["epoch", "once"] | None = parameter(default=None, least=1, doc="Batches.")

    def __post_init__(self) -> None:
        self.total = 3


class First(Parameterized):
    """One that comes before the others."""

    first: Any = parameter(kw_only=False, text="object", doc="The first.")


class Derived(Base, First):
    """What one has beside them."""

    rate: float = parameter(default=0.5, above=0, doc="The rate.")
    how: Literal["sum", "mean"] = parameter(default="mean", doc="How.")
    layers: Literal["all"] | Sequence[str] = parameter(default="all", doc="Names.")
    share: float = parameter(default=1.0, least=0.5, most=1, doc="The share.")
    own: bool = parameter(default=False, doc="Whether.")


class Chosen(Derived):
    """One whose model is not given."""

    model: Model = parameter(init=False, text="Model", doc="The model.")


def test_the_very_objects_are_stored_and_defaults_where_nothing_is_given():
    model, size = object(), np.int64(8)
    derived = Derived("a", model, batch_size=size)
    assert (derived.model, derived.batch_size, derived.total) == (model, size, 3)
    assert type(derived.batch_size) is np.int64
    assert derived.get_params() == {
        **{"first": "a", "model": model, "batch_size": 8, "window": None},
        **{"rate": 0.5, "how": "mean", "layers": "all", "share": 1.0, "own": False},
    }


def test_positional_parameters_come_first_and_own_ones_before_those_of_bases():
    names = ["first", "model", "rate", "how", "layers", "share", "own", "batch_size", "window"]
    assert list(inspect.signature(Derived).parameters) == list(Derived.parameters) == names
    assert list(inspect.signature(Chosen).parameters) == [n for n in names if n != "model"]
    assert inspect.signature(Derived).parameters["batch_size"].annotation is int


@pytest.mark.parametrize("wrong", [{"batchsize": 3}, {"batch_size": 3, "total": 4}])
def test_an_unknown_keyword_is_refused_with_the_nearest(wrong):
    with pytest.raises(UnknownArgumentError, match="Derived has no argument"):
        Derived(1, 2, **wrong)
    with pytest.raises(UnknownArgumentError, match="'model'"):
        Chosen(1, model=3)


@pytest.mark.parametrize("positional", [(), (1,), (1, 2, 3)])
def test_as_many_positional_arguments_as_python_takes(positional):
    with pytest.raises(TypeError):
        Derived(*positional)


@pytest.mark.parametrize(
    ("name", "value", "demand"),
    [
        ("batch_size", 0, "a whole number of at least 1"),
        ("batch_size", 2.0, "a whole number of at least 1"),
        ("batch_size", True, "a whole number of at least 1"),
        ("batch_size", 10**400, "a whole number of at least 1"),
        ("window", "day", "a whole number of at least 1, 'epoch', 'once' or None"),
        ("rate", 0, "a finite number above 0"),
        ("rate", float("nan"), "a finite number above 0"),
        ("rate", float("inf"), "a finite number above 0"),
        ("rate", "1", "a finite number above 0"),
        ("share", 1.01, "a number of at least 0.5 and at most 1"),
        ("how", "max", "'sum' or 'mean'"),
        ("layers", "some", "'all' or a list"),
        ("layers", [3], "'all' or a list"),
        ("own", 1, "True or False"),
    ],
)
def test_a_value_out_of_type_or_range_is_refused_with_what_was_received(name, value, demand):
    derived = Derived(1, 2, **{name: value})
    with pytest.raises(ConfigurationError) as refused:
        derived.checked()
    assert str(refused.value) == f"{name} must be {demand}. Received: {value!r}."


def test_a_checked_copy_has_plain_values():
    derived = Derived(1, 2, batch_size=np.int32(8), rate=np.float32(0.5), layers=("a", "b"))
    checked = derived.checked()
    assert (checked.batch_size, checked.rate, checked.layers) == (8, 0.5, ["a", "b"])
    assert (type(checked.batch_size), type(checked.rate)) == (int, float)
    assert checked.replace(batch_size=4).batch_size == 4
    assert checked.batch_size == 8


def test_the_documentation_has_a_section_of_all_parameters_before_the_others():
    doc = NumpyDocString(inspect.getdoc(Base))
    assert [tuple(each) for each in doc["Parameters"]] == [
        ("model", "Model", ["The model."]),
        ("batch_size", "int, default 32", ["Rows. Of one."]),
        ("window", 'int, "epoch" or "once", optional', ["Batches."]),
    ]
    assert [each.name for each in doc["Attributes"]] == ["total"]
    headings = [each.heading for each in Derived.parameters.values()][2:6]
    assert headings == [
        "rate : float, default 0.5",
        'how : {"sum", "mean"}, default "mean"',
        'layers : "all" or sequence of str, default "all"',
        "share : float, default 1",
    ]


def test_a_parameter_has_a_flag_and_a_name_in_spark_ml():
    size = Base.parameters["batch_size"]
    assert (size.option, size.metavar, size.summary) == ("--batch-size", "N", "Rows")
    assert size.spark_ml_name == "batchSize"
