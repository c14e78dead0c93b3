"""Which windows do not look like the others, without sockets, Keras or clocks.

Of a commit the server knows a few numbers (`CommitStatistics`), and those of the commits that were
folded before (`RunningStatistics`). A function of the user's is asked by each worker, so the server
runs no code of theirs.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

import msgspec

from distkeras_grid.errors import ValidateError
from distkeras_grid.weights import Vector

#: A user's function: of a window's mean loss, its metrics and what is sent of it, it returns why
#: that must not be folded, or nothing.
Validate: TypeAlias = Callable[[float | None, Mapping[str, float], Vector], str | None]
#: Commits that are remembered. Their median follows a falling learning rate.
RECENT = 100
#: Characters of a reason that are kept; each goes to the driver, and into the history.
LONGEST_REASON = 1000


class CommitStatistics(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is measured of a commit."""

    loss: float  # Mean loss of the window
    # Euclidean norm of the change of the trainable weights, or of the gradient. Of rules that send
    # weights, the change is their distance from the worker's center. None if the worker has begun
    # with weights of its own, which the server does not know.
    norm: float | None
    # Euclidean norm of the distance of the averaged parts (means and variances of batch
    # normalization, an optimizer's state that travels) from those of the center
    statistics: float


class RunningStatistics(msgspec.Struct, forbid_unknown_fields=True):
    """What is remembered of commits that were folded."""

    recent: list[CommitStatistics] = []  # The newest of them, at most `RECENT`
    highest_loss: float | None = None  # The highest loss of all; None before the first one

    def add(self, measure: CommitStatistics) -> None:
        """Remember a commit that is folded."""
        self.recent.append(measure)
        del self.recent[:-RECENT]
        highest = self.highest_loss
        self.highest_loss = measure.loss if highest is None else max(highest, measure.loss)


def outlier(
    commit: CommitStatistics,
    together: Sequence[CommitStatistics],
    history: RunningStatistics,
    factor: float,
) -> str:
    """Return what makes a commit an outlier, in words; empty if nothing does.

    A norm is compared with the median of the newest commits that were folded, as bounds of norms
    are in federated learning (Sun et al., "Can You Really Backdoor Federated Learning?", 2019); a
    loss with the highest one of them, because losses near zero differ by large factors. Before the
    first fold there are only the commits of its round to compare with, `together`, with the lower
    median, so that of two the larger one is suspect. A commit that is folded alone is one of one.
    """
    known = history.recent or together
    of = (
        f"the median of the last {len(known)} commits"
        if history.recent
        else "the median of its round"
    )
    loss, of_losses = history.highest_loss, "the highest loss so far"
    if loss is None:
        loss, of_losses = _median(each.loss for each in known), of
    norm = _median(each.norm for each in known if each.norm is not None)
    averaged = _median(each.statistics for each in known)
    for what, value, usual, reference in (
        ("its change has the norm", commit.norm, norm, of),
        ("its loss is", commit.loss, loss, of_losses),
        ("its averaged parts differ by", commit.statistics, averaged, of),
    ):
        if value is not None and usual > 0 and value > factor * usual:
            return f"{what} {value:.3g}, {value / usual:.3g} times {reference}"
    return ""


def _median(values: Iterable[float]) -> float:
    numbers = list(values)
    return statistics.median_low(numbers) if numbers else 0.0


def ask(validate: Validate, loss: float | None, metrics: Mapping[str, float], sent: Vector) -> str:
    """Return what a user's function has against a window, empty if nothing."""
    name = getattr(validate, "__qualname__", type(validate).__qualname__)
    vector = sent.view()
    vector.flags.writeable = False
    try:
        reason = validate(loss, metrics, vector)
        if reason is not None and not isinstance(reason, str):
            raise TypeError(
                f"it returns a text, or None if the window may be folded. Received: {reason!r}"
            )
    except Exception as error:
        raise ValidateError.of(name, error) from error
    # A plain text, whatever class it is of. Lone surrogates cannot be sent.
    text = "".join(reason or "")[:LONGEST_REASON]
    return text.encode("utf-8", "backslashreplace").decode()[:LONGEST_REASON]
