"""Windows in columns are the records that were added."""

from __future__ import annotations

import math
import pickle
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distkeras_grid.records import WindowRecord
from distkeras_grid.windows import Windows

NUMBERS = st.integers(0, 2**53 - 1)
REALS = st.floats(allow_nan=False)
RECORDS = st.builds(
    WindowRecord,
    **dict.fromkeys(("worker", "attempt", "epoch", "window", "steps", "samples"), NUMBERS),
    **dict.fromkeys(("staleness", "bytes_up", "bytes_down", "version"), NUMBERS),
    **dict.fromkeys(("started", "seconds", "folded_at"), REALS),
    **dict.fromkeys(("loss", "learning_rate"), st.none() | REALS),
    metrics=st.dictionaries(st.sampled_from(["accuracy", "auc", "f1"]), REALS),
)


@given(st.lists(RECORDS, max_size=8), st.slices(8))
@pytest.mark.full
def test_they_are_a_sequence_of_what_was_added(records, part):
    windows = Windows(records[:3])
    windows.extend(records[3:])
    assert (len(windows), list(windows)) == (len(records), records)
    assert windows[part] == records[part]
    assert windows == records
    assert windows == Windows(records)
    assert [windows[place] for place in range(-len(records), 0)] == records
    assert windows.samples == sum(record.samples for record in records)
    assert list(windows.column("started")) == [record.started for record in records]
    assert pickle.loads(pickle.dumps(windows)) == records  # noqa: S301


@given(st.lists(RECORDS, max_size=8), NUMBERS, NUMBERS)
@pytest.mark.full
def test_windows_are_found_by_their_versions(records, since, until):
    found = list(Windows(records).between(since, until))
    assert found == [n for n, record in enumerate(records) if since < record.version <= until]


def test_a_place_beyond_the_end_is_an_error():
    with pytest.raises(IndexError):
        Windows()[0]
    assert Windows()[-3:] == []


def test_numbers_that_do_not_exist_stay_what_they_are():
    values = (math.nan, math.inf, -math.inf)
    windows = Windows(
        WindowRecord(0, 0, 1, 0, 1, 1, value, {"a": value}, 0.0, 0.0, 0, 0, 0, 0.0, 1)
        for value in values
    )
    assert [str(window.loss) for window in windows] == [str(value) for value in values]
    assert [str(window.metrics["a"]) for window in windows] == [str(value) for value in values]


MILLION = """
import pathlib, re, sys
from distkeras_grid.history import History
from distkeras_grid.records import EpochEnded, WindowRecord
history = History()
for number in range(10**6):
    history.add(WindowRecord(
        number % 200, 1000 + number % 200, 1 + number // 10**5, number % 5000, 16, 512,
        0.5 + number / 1e7, {"accuracy": 0.25, "auc": 0.5}, 1.7e9 + number, 0.25, number % 7,
        3_350_440, 3_350_440, 1.7e9 + number, number + 1))
    if number % 10**5 == 10**5 - 1:
        history.add_epoch(EpochEnded(1 + number // 10**5, number + 1, 512 * (number + 1), 1.7e9))
with open(sys.argv[1], "w") as file:
    file.writelines(history.lines())
assert history.samples == 512 * 10**6 and history.records[-1].worker == (10**6 - 1) % 200
# Not ru_maxrss, which begins with that of the process that started this one.
status = pathlib.Path("/proc/self/status").read_text()
print(int(re.search(r"VmHWM:\\s+([0-9]+)", status)[1]) // 1024)
"""


@pytest.mark.full
def test_a_million_windows_of_a_driver_and_their_file_take_less_than_200_mb(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", MILLION, str(tmp_path / "history.jsonl")],
        check=True,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert int(done.stdout) < 200
    with (tmp_path / "history.jsonl").open() as file:
        assert sum(1 for _ in file) == 10**6 + 10 + 1
