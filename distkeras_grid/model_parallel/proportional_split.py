"""Divides work among devices: whole parts in proportion to speeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate, pairwise


def divide(total: int, speeds: Sequence[float]) -> tuple[int, ...]:
    """Divide whole parts in proportion to speeds, by largest remainder.

    Every share is within one part of the exact proportion, and a device may get none. So the
    slowest of them needs at most one part more than in an exact division::

        max_d(k_d / s_d)  <=  K / sum(s) + max_d(1 / s_d)

    `total`: number of parts, at least 0.
    `speeds`: parts per second of each device; 0 for a device that must get none, at least one
    above.

    Examples
    --------
    >>> divide(10, [1.0, 1.0, 2.0])
    (3, 2, 5)
    >>> divide(3, [100.0, 1.0])
    (3, 0)
    """
    # In units of the highest speed, so that sums of very small or very large speeds stay exact.
    relative = [speed / max(speeds) for speed in speeds]
    exact = [total * speed / math.fsum(relative) for speed in relative]
    shares = [math.floor(quota) for quota in exact]
    order = sorted(range(len(exact)), key=lambda d: (shares[d] - exact[d], d))
    order = [device for device in order if speeds[device] > 0]
    for device in order[: total - sum(shares)]:
        shares[device] += 1
    return tuple(shares)


def ranges(shares: Sequence[int]) -> tuple[range, ...]:
    """Return the parts of each device, in the order of the devices.

    Examples
    --------
    >>> ranges((3, 0, 2))
    (range(0, 3), range(3, 3), range(3, 5))
    """
    return tuple(range(*pair) for pair in pairwise([0, *accumulate(shares)]))
