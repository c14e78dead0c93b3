"""Shares by largest remainder: V2 and V5."""

import math

import numpy as np

from distkeras_grid.model_parallel.proportional_split import divide


def cases(count=300):
    generator = np.random.default_rng(7)
    for _ in range(count):
        devices = int(generator.integers(1, 9))
        speeds = 10 ** generator.uniform(-6, 6, devices)
        speeds[generator.random(devices) < 0.2] = 0.0
        if not speeds.any():
            speeds[0] = 1.0
        yield int(generator.integers(0, 2000)), speeds.tolist()


def test_shares_are_whole_add_up_and_are_within_one_of_the_proportion():
    for total, speeds in cases():
        shares = divide(total, speeds)
        assert sum(shares) == total
        for share, speed in zip(shares, speeds, strict=True):
            assert abs(share - total * speed / math.fsum(speeds)) < 1
            assert share == 0 or speed > 0


def test_no_device_needs_much_longer_than_in_an_exact_division():
    for total, speeds in cases():
        used = [(k, s) for k, s in zip(divide(total, speeds), speeds, strict=True) if s]
        slowest = max(k / s for k, s in used)
        bound = total / math.fsum(speeds) + max(1 / s for _, s in used)
        assert slowest <= bound * (1 + 1e-9)


def test_very_large_and_very_small_speeds_are_divided_as_others():
    assert divide(10, [1e300, 1e300]) == divide(10, [1e-300, 1e-300]) == (5, 5)
