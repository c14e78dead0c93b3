from __future__ import annotations

import json
import unicodedata

import numpy as np
import pytest

from data_prep.geometry.regions import ZoneRules, read_zones
from distkeras_grid.errors import ConfigurationError, SchemaError

TABLE = """\
file,left,top,right,bottom,kind
a/1.png,0,90,100,100,
a/1.png,5,5,20.5,10,exclude
b/2.png,10,10,60,60,include
"""


def feature(file, coordinates, kind=None, shape="Polygon"):
    properties = {"file": file} | ({"kind": kind} if kind else {})
    geometry = {"type": shape, "coordinates": coordinates}
    return {"type": "Feature", "properties": properties, "geometry": geometry}


SQUARE = [[0, 90], [100, 90], [100, 100], [0, 100], [0, 90]]
HOLE = [[40, 92], [50, 92], [50, 98], [40, 92]]


def test_a_table():
    zones = ZoneRules(read_zones(TABLE, "zones.csv")).of("a/1.png", 100, 100)
    assert len(zones.excluded) == 2
    assert zones.included == ()
    np.testing.assert_array_equal(zones.excluded[0][0], SQUARE[:4])
    assert len(ZoneRules(read_zones("\ufeff" + TABLE, "Z.CSV")).of("b/2.png", 9, 9).included) == 1


def test_geojson():
    features = [
        feature("a.png", [SQUARE, HOLE]),
        feature("a.png", [[SQUARE], [HOLE]], "include", "MultiPolygon"),
    ]
    text = json.dumps({"type": "FeatureCollection", "features": features})
    zones = ZoneRules(read_zones(text, "zones.geojson")).of("a.png", 100, 100)
    assert [len(rings) for rings in zones.excluded] == [2]
    assert [len(rings) for rings in zones.included] == [1, 1]
    np.testing.assert_array_equal(zones.excluded[0][0], SQUARE[:4])


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("file,left,top,right\na,0,0,1", "z.csv"),
        ("", "z.csv"),
        ("file,left,top,right,bottom\na,0,0,x,1", "z.csv"),
        ("file,left,top,right,bottom\na,0,0,nan,1", "z.csv"),
        ("file,left,top,right,bottom\na,0,0", "z.csv"),
        ("file,left,top,right,bottom\na,5,0,5,1", "z.csv"),
        ("file,left,top,right,bottom,kind\na,0,0,5,1,hide", "z.csv"),
        ("{", "z.geojson"),
        (json.dumps({"features": [feature("a", [[[0, 0], [5], [5, 5], [0, 0]]])]}), "z.geojson"),
        ("[" * 5000, "z.geojson"),
        ("7", "z.json"),
        (json.dumps([{"geometry": None, "properties": {"file": "a"}}]), "z.json"),
        (json.dumps([feature("a", [[[0, 0], [1, 1]]])]), "z.json"),
        (json.dumps([feature("a", [0, 0], shape="Point")]), "z.json"),
        (json.dumps([feature("a", [SQUARE], kind="hide")]), "z.json"),
        (json.dumps([{**feature("a", [SQUARE]), "properties": {}}]), "z.json"),
        ('[{"properties": {"file": "a"}, "geometry": {"type": "Polygon", "coordinates": '
         "[[[0, 0], [1, 0], [NaN, 1]]]}}]", "z.json"),
        ("[7]", "z.json"),
        ("file,left,top,right,bottom\na,0,0,inf,9", "z.csv"),
        ("file,left,top,right,bottom\na,-1e300,0,1,9", "z.csv"),
        ("file,left,top,right,bottom\na,0,nan,9,9", "z.csv"),
        ("left,top,right,bottom,file\n0,0,9,9", "z.csv"),
        ('file,left,top,right,bottom\n"a,0,0,5,5\nb,0,0,5,5\n', "z.csv"),
        (json.dumps([feature("a", [[[0, 0], [10**400, 0], [1, 1]]])]), "z.json"),
        ("left,top,right,bottom,file\n0,0,9,9,", "z.csv"),
        (json.dumps([feature("a", [[[0, 0], [1e300, 0], [1, 1]]])]), "z.json"),
    ],
)  # fmt: skip
def test_what_cannot_be_meant_is_named(text, name):
    with pytest.raises(SchemaError, match=name):
        read_zones(text, name)


def test_other_files_are_refused():
    with pytest.raises(ConfigurationError):
        read_zones(TABLE, "zones.txt")


def test_a_bottom_strip_is_of_every_image():
    rules = ZoneRules({}, bottom_strip=20)
    (polygon,) = rules.of("any", 300, 200).excluded
    np.testing.assert_array_equal(polygon[0], [[0, 180], [300, 180], [300, 200], [0, 200]])
    assert not ZoneRules().of("any", 300, 200)


def test_digests_tell_zones_apart():
    listed = read_zones(TABLE, "z.csv")
    digests = {
        ZoneRules(listed).digest("a/1.png"),
        ZoneRules(listed).digest("b/2.png"),
        ZoneRules(listed, 20).digest("a/1.png"),
        ZoneRules({}, 20).digest("a/1.png"),
        ZoneRules(listed).digest("c/3.png"),
    }
    assert len(digests) == 5
    assert ZoneRules(listed).digest("c/3.png") is None
    assert ZoneRules(listed).digest("a/1.png") == ZoneRules(read_zones(TABLE, "y.csv")).digest(
        "a/1.png"
    )


def test_zones_of_files_that_are_not_there():
    rules = ZoneRules(read_zones(TABLE, "z.csv"))
    rules.check_files(["a/1.png", "b/2.png", "c/3.png"])
    with pytest.raises(SchemaError, match=r"b/2\.png"):
        rules.check_files(["a/1.png"])


def test_scaled_zones():
    (polygon,) = ZoneRules({}, 20).of("any", 300, 200).scaled(0.5, 2).excluded
    np.testing.assert_array_equal(polygon[0], [[0, 360], [150, 360], [150, 400], [0, 400]])


def test_accents_are_written_in_two_ways():
    composed, decomposed = (unicodedata.normalize(form, "é/ü.png") for form in ("NFC", "NFD"))
    assert composed != decomposed
    header, row = "file,left,top,right,bottom", "{},0,0,5,5"
    for written in (composed, decomposed):
        rules = ZoneRules(read_zones(f"{header}\n{row.format(written)}", "z.csv"))
        for there in (composed, decomposed):
            rules.check_files([there])
            assert rules.of(there, 10, 10)
            assert rules.digest(there)
    both = f"{header}\n{row.format(composed)}\n{row.format(decomposed)}"
    assert len(ZoneRules(read_zones(both, "z.csv")).of(composed, 10, 10).excluded) == 2
