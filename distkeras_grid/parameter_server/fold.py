"""The arithmetic on the center, chunk by chunk.

A chunk of 256 KiB stays in the processor's cache while the rule folds it and turns it into its
reply, so both together cost about one pass through memory. The caller holds the lock around the
whole vector: a commit is folded at once or not at all, and every reply is one version.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from distkeras_grid.rules import AsynchronousRule, CommitInfo, SynchronousRule
from distkeras_grid.rules.statistics import combine_statistics, fold_statistics
from distkeras_grid.weights import Vector

CHUNK = 65536


def _chunks(start: int, stop: int) -> Iterator[slice]:
    for begin in range(start, stop, CHUNK):
        yield slice(begin, min(begin + CHUNK, stop))


def is_finite(vector: Vector) -> bool:
    """Whether every element is a finite number.

    Parameters
    ----------
    vector : ndarray
        Shape ``(size,)``, ``float32``.

    Examples
    --------
    >>> is_finite(np.array([3e38, 3e38], np.float32)), is_finite(np.array([np.nan], np.float32))
    (True, False)
    """
    return all(bool(np.isfinite(vector[chunk]).all()) for chunk in _chunks(0, vector.size))


def fold_commit(
    rule: AsynchronousRule,
    center: Vector,
    payload: Vector,
    trainable_size: int,
    commit: CommitInfo,
    workers: int,
) -> None:
    """Fold one commit, and turn it into its reply.

    Parameters
    ----------
    rule : AsynchronousRule
        What the trainable part obeys.
    center, payload : ndarray
        Whole vectors ``[trainable | statistics]``, ``float32``; both change in place.
    trainable_size : int
        Length of the trainable part.
    commit : CommitInfo
        Where the payload came from.
    workers : int
        Number of workers.
    """
    for chunk in _chunks(0, trainable_size):
        rule.fold(center[chunk], payload[chunk], commit)
    for chunk in _chunks(trainable_size, center.size):
        fold_statistics(center[chunk], payload[chunk], workers)


def repeat_reply(
    rule: AsynchronousRule, center: Vector, payload: Vector, trainable_size: int
) -> None:
    """Turn a commit that was folded before into its reply; the center stays as it is.

    Parameters
    ----------
    rule : AsynchronousRule
        What the trainable part obeys.
    center, payload : ndarray
        Whole vectors; only `payload` changes.
    trainable_size : int
        Length of the trainable part.
    """
    rule.repeat(center[:trainable_size], payload[:trainable_size])
    np.copyto(payload[trainable_size:], center[trainable_size:])


def combine_round(
    rule: SynchronousRule,
    center: Vector,
    payloads: Sequence[Vector],
    trainable_size: int,
    commits: Sequence[CommitInfo],
) -> None:
    """Fold one synchronous round, and turn every commit of it into the reply, the new center.

    Parameters
    ----------
    rule : SynchronousRule
        What the trainable part obeys.
    center : ndarray
        Whole vector; changes in place.
    payloads : sequence of ndarray
        Whole vectors in the order of the seats; all become copies of the new center.
    trainable_size : int
        Length of the trainable part.
    commits : sequence of CommitInfo
        Where the payloads came from, in the same order.
    """
    for chunk in _chunks(0, trainable_size):
        parts = [payload[chunk] for payload in payloads]
        rule.combine(center[chunk], parts, commits)
        for part in parts:
            np.copyto(part, center[chunk])
    for chunk in _chunks(trainable_size, center.size):
        parts = [payload[chunk] for payload in payloads]
        combine_statistics(center[chunk], parts, commits)
        for part in parts:
            np.copyto(part, center[chunk])
