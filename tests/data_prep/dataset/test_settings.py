import fnmatch

import pytest

from data_prep.dataset.settings import TilingSettings, parse_angles, suffix_glob
from distkeras_grid.errors import ConfigurationError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0:360:5", [float(a) for a in range(0, 360, 5)]),
        ("0:1:0.1", [i * 0.1 for i in range(10)]),
        ("-10:11:10", [-10, 0, 10]),
        ("0:7:5", [0, 5]),
        ("0", [0]),
        ("0,22.5", [0, 22.5]),
    ],
)
def test_angles(text, expected):
    assert parse_angles(text) == pytest.approx(expected)


@pytest.mark.parametrize(
    "text", ["", "a", "0:360", "0:360:0", "360:0:5", "0:360:-5", "0:1:2:3", "0:inf:5", "0:360:1e-9"]
)
def test_angles_that_cannot_be_meant(text):
    with pytest.raises(ConfigurationError, match="START:STOP:STEP"):
        parse_angles(text)


def test_glob_takes_every_suffix_in_any_case():
    inner = suffix_glob().removeprefix("*.{").removesuffix("}")
    taken = [f"*.{part}" for part in inner.split(",")]
    for name in ("a.png", "a.PNG", "b.Jpg", "c.jpeg", "d.tif", "e.TIFF", "f.bmp"):
        assert any(fnmatch.fnmatchcase(name, pattern) for pattern in taken)
    assert not any(fnmatch.fnmatchcase("labels.csv", pattern) for pattern in taken)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"encoding": "gif"}, r"raw, difference, png, jpeg.*Received: 'gif'"),
        ({"on_error": "ignore"}, "fail, skip"),
        ({"channels": "2"}, "auto, 1, 3"),
        ({"quality": 0}, r"1 to 100.*Received: 0"),
        ({"split": "0.5"}, "add up to 1"),
        ({"labels": "regex:[a-z]+"}, "named 'label'"),
        ({"group": "[a-z]+"}, "named 'group'"),
        ({"output": ""}, "empty"),
    ],
)
def test_refuses_what_cannot_be_meant(arguments, says):
    with pytest.raises(ConfigurationError, match=says):
        TilingSettings(**{"input": "a", "output": "b", **arguments})
