"""What is read from outside may be anything: it is taken, or refused with an error of ours."""

from __future__ import annotations

from itertools import islice

import pytest

from tests.fuzz_targets import all_targets
from tests.fuzzing import CrashError, Target, check, inputs

#: Of each target; `python -m tests.benchmarks.fuzz` takes a million.
INPUTS = 300
#: Each so many inputs, memory is measured.
MEASURED = 10


@pytest.mark.parametrize("target", all_targets(), ids=lambda target: target.name)
def test_changed_bytes_crash_nothing(target):
    for number, data in enumerate(islice(inputs(target), INPUTS)):
        check(target, data, memory=number % MEASURED == 0)


@pytest.mark.parametrize("target", all_targets(), ids=lambda target: target.name)
def test_what_is_changed_was_valid(target):
    assert all(check(target, seed) for seed in target.seeds)


@pytest.mark.parametrize("read", [lambda data: 1 / (data[0] - 7), lambda data: data * 10**6])
def test_a_crash_and_a_waste_of_memory_are_found(read):
    target = Target("bad", [b"\x07"], read, (ValueError,))
    with pytest.raises(CrashError):
        check(target, b"\x07" * 20, memory=True)


def test_inputs_come_again():
    target = all_targets()[0]
    assert list(islice(inputs(target, 3), 20)) == list(islice(inputs(target, 3), 20))
    assert list(islice(inputs(target, 3), 20)) != list(islice(inputs(target, 4), 20))
