"""The policy for statistics, the same for every rule.

Moving means and variances of batch normalization are averaged, never summed as deltas. If eight
workers each reported that the variance fell from 1 to 0.2, the sum would make it negative and its
root NaN. Workers send the values themselves and adopt what comes back.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from distkeras_grid.rules.base import Rule
from distkeras_grid.rules.finite_checks import is_small
from distkeras_grid.weights import Section, Vector


def fold_statistics(center: Vector, payload: Vector, workers: int) -> None:
    """Fold one worker's statistics: ``s <- (1 - 1/n) s + (1/n) s_i``; the reply is ``s``."""
    if workers == 1:
        np.copyto(center, payload)
        return
    if is_small(payload) and is_small(center):
        np.subtract(payload, center, out=payload)
        np.divide(payload, workers, out=payload)
        np.add(center, payload, out=center)
    else:
        # The difference of two finite numbers may be infinite.
        wide = center.astype(np.float64)
        np.copyto(center, wide + (payload - wide) / workers, casting="same_kind")
    np.copyto(payload, center)


def compute_commit(
    rule: Rule,
    sections: Sequence[Section],
    before: Vector,
    after: Vector,
    steps: int,
    out: Vector,
) -> None:
    """Fill `out` with a worker's whole commit. Sections that are averaged are sent as they are.

    `steps`: mini-batches in the window, at least 1.
    """
    for section in sections:
        part = section.span
        if section.policy == "rule":
            rule.compute_commit(before[part], after[part], steps, out[part])
        else:
            np.copyto(out[part], after[part])


def apply_reply(
    rule: Rule, sections: Sequence[Section], after: Vector, reply: Vector, out: Vector
) -> None:
    """Fill `out` with the whole vector that a worker's next window starts from.

    `after, reply, out`: whole vectors, ``float32``; `out` may be one of the others.
    """
    averaged = reply if rule.traits.reply_has_vector else after
    for section in sections:
        part = section.span
        if section.policy == "rule":
            rule.apply_reply(after[part], reply[part], out[part])
        else:
            np.copyto(out[part], averaged[part])
