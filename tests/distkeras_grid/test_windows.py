"""Windows in columns are the records that were added."""

import math
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distkeras_grid.records import WindowRecord
from distkeras_grid.windows import Windows
from tests.records import window_record

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
    for record in records[3:]:
        windows.append(record)
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
    windows = Windows(window_record(loss=value, metrics={"a": value}) for value in values)
    assert [str(window.loss) for window in windows] == [str(value) for value in values]
    assert [str(window.metrics["a"]) for window in windows] == [str(value) for value in values]
