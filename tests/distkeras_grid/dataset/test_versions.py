"""Which version of a data set is read: the present one, or one by number or hash."""

import pytest

from distkeras_grid.dataset.manifest import Manifest, Version
from distkeras_grid.dataset.versions import (
    choose,
    parse_version,
    present_manifest,
    present_number,
    refuse_incomplete,
)
from distkeras_grid.errors import (
    ConfigurationError,
    PathNotFoundError,
    SchemaError,
)
from tests.interleaving import at_once

DAY = "2026-11-23T00:00:00+00:00"


def version(number):
    return Version(number, f"{number}abc" * 16, DAY, DAY, ("shard=0",), 9)


PRESENT = Manifest(last_update=7, hash="f" * 64, history=(version(3), version(5)))


@pytest.mark.parametrize(
    ("wanted", "number"),
    [(5, 5), ("3", 3), ("5abc" * 16, 5), ("3abc3abc3abc", 3), (7, None), ("f" * 12, None)],
)
def test_a_version_is_chosen_by_number_or_hash(wanted, number):
    found = choose(PRESENT, wanted, "tiles")
    assert (found and found.number) == number


@pytest.mark.parametrize("wanted", [0, 4, 8, "a" * 64])
def test_a_version_that_is_not_kept_is_named_with_those_that_are(wanted):
    with pytest.raises(SchemaError, match=r"3, 5, 7 \(the present\)"):
        choose(PRESENT, wanted, "tiles")


@pytest.mark.parametrize("wanted", ["", "-1", "1.5", "abc", "../3", "F" * 64, "x" * 12])
def test_what_is_no_version_is_refused(wanted):
    with pytest.raises(ConfigurationError):
        parse_version(wanted)


def present(files):
    return present_manifest("/tiles", files.list_names, files.exists, files.read_bytes)


def test_the_highest_number_is_the_present_version():
    files = at_once({f"/tiles/_versions/{name}": b"x" for name in ("9.json", "_11.json.0.tmp")})
    assert present(files) == (9, b"x")
    files.write_text("/tiles/_versions/10.json", "y")
    assert present(files) == (10, b"y")


@pytest.mark.parametrize("names", [[], ["part-0.parquet"], ["_versions/_0.json.0.tmp"]])
def test_a_folder_without_a_version_has_no_manifest(names):
    assert present(at_once({f"/tiles/{name}": b"" for name in names})) is None


def test_the_layout_before_is_refused_by_name_with_the_way_out():
    files = at_once({"/tiles/_dataset.json": b"{}", "/tiles/_versions/0.json": b"{}"})
    with pytest.raises(SchemaError, match=r"_dataset\.json.*versions --data /tiles --convert"):
        present_number("/tiles", files.list_names, files.exists)


def test_shards_of_a_run_are_no_plain_parquet_files():
    refuse_incomplete("/tiles", ["shard=0", "shard=x-1", "part-0.parquet", "split=train"])
    with pytest.raises(PathNotFoundError, match="run it again"):
        refuse_incomplete("/tiles", ["shard=0-20261127T113000-1f2e3d4c"])
