import json
import math

import pytest

from distkeras_grid.errors import ConfigurationError
from distkeras_grid.records import format_line
from distkeras_grid.simulation.cluster import Cluster, Outage


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("workers", 0),
        ("workers", 2.0),
        ("batch_seconds", 0.0),
        ("batch_seconds", math.inf),
        ("batch_seconds", "1"),
        ("speeds", (1.0, 0.0)),
        ("times", "normal"),
        ("straggler_probability", 1.5),
        ("straggler_factor", 0.5),
        ("latency", -1.0),
        ("latency", math.nan),
        ("bandwidth", 0),
        ("server_bandwidth", -1),
        ("late", {0: -1.0}),
        ("seed", -1),
        ("seed", True),
    ],
)
def test_what_is_out_of_its_range_is_named(field, value):
    with pytest.raises(ConfigurationError, match=rf"Cluster\.{field} is out of its range"):
        Cluster(**{"workers": 2, field: value})


def test_speeds_are_one_for_each_worker():
    with pytest.raises(ConfigurationError, match=r"one number for each of 3 workers\. Received: 2"):
        Cluster(3, speeds=(1, 1))


@pytest.mark.parametrize("named", [{"late": {3: 1.0}}, {"outages": [Outage(3, at=1.0)]}])
def test_unknown_workers_are_refused(named):
    with pytest.raises(ConfigurationError, match=r"\b0 to 2\b.*\b3\b"):
        Cluster(3, **named)


@pytest.mark.parametrize("wrong", [{"at": -1.0}, {"at": math.inf}, {"at": 0.0, "seconds": -1.0}])
def test_outages_happen_at_some_time(wrong):
    with pytest.raises(ConfigurationError, match="An outage begins at a finite time"):
        Outage(0, **wrong)


def test_seconds_of_a_batch_are_needed_where_nothing_measures_them():
    with pytest.raises(ConfigurationError, match="batch_seconds must be given"):
        Cluster(1).window_seconds(0, 1)


def test_it_is_plain_json_for_the_history():
    cluster = Cluster(2, batch_seconds=0.5, speeds=[1, 2], late={1: 3.0}, outages=[Outage(0, 1.0)])
    read = json.loads(format_line(cluster.to_json()))
    assert read["speeds"] == [1, 2]
    assert read["late"] == {"1": 3.0}
    assert read["outages"] == [{"worker": 0, "at": 1.0, "seconds": "Infinity"}]
    assert read["bandwidth"] == "Infinity"
