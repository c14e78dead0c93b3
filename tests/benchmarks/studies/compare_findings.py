"""What a comparison says about the statements of the paper that it repeats.

Each finding is a statement, an answer in numbers and the table behind it. Statements whose sides
were not measured are left out. Differences of accuracy are in points, hundredths of the validation
rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from statistics import median

from tests.benchmarks.studies.page import Finding
from tests.benchmarks.studies.summary import END, FIRST, Line

Rows = list[list[str]]


def find_all(lines: Sequence[Line]) -> list[Finding]:
    """Return the findings of all statements that can be answered.

    Parameters
    ----------
    lines : sequence of Line
    """
    asked: tuple[Callable[[Sequence[Line]], Finding | None], ...] = (
        is_distributed_slower,
        is_accuracy_close,
        is_adag_robust,
        is_downpour_behind,
        is_single_unsteady,
        is_batch_a_trade,
    )
    return [finding for ask in asked if (finding := ask(lines)) is not None]


def is_distributed_slower(lines: Sequence[Line]) -> Finding | None:
    """Compare the time of all epochs with that of ``local``, model by model and batch by batch."""
    pairs = _with_local(lines)
    if not pairs:
        return None
    ratios = [local.seconds[END].mean / line.seconds[END].mean for line, local in pairs]
    slower = sum(ratio < 1 for ratio in ratios)
    return Finding(
        "Distributed training takes longer than local training.",
        f"{_verdict(slower, len(ratios))} {slower} of {len(ratios)} times slower than local with "
        f"all cores. Time of local by time of ours: median {median(ratios):.2f}, from "
        f"{min(ratios):.2f} to {max(ratios):.2f}; above 1 ours is faster.",
        _by_batch(
            [(line, f"{ratio:.2f}") for (line, _), ratio in zip(pairs, ratios, strict=True)],
            "local / ours",
        ),
    )


def is_accuracy_close(lines: Sequence[Line]) -> Finding | None:
    """Compare the accuracy at the end with that of ``local``."""
    pairs = _with_local(lines)
    if not pairs:
        return None
    points = [_points(line.accuracy[END].mean - local.accuracy[END].mean) for line, local in pairs]
    close = sum(abs(difference) <= 1 for difference in points)
    return Finding(
        "The accuracy is very close to that of local training.",
        f"{_verdict(close, len(points))} {close} of {len(points)} times within one point. Ours "
        f"less local: median {median(points):+z.1f} points, from {min(points):+z.1f} to "
        f"{max(points):+z.1f}.",
        _by_batch(
            [(line, f"{value:+z.1f}") for (line, _), value in zip(pairs, points, strict=True)],
            "ours less local, points",
        ),
    )


def is_adag_robust(lines: Sequence[Line]) -> Finding | None:
    """Compare how far the accuracies of each side lie apart over the batch sizes."""
    ranges: list[tuple[str, str, str, float, float]] = []
    for group in _groups(lines, lambda line: (line.model, line.trainer, line.workers)):
        if len(group) > 1:
            first, end = (
                _range(line.accuracy[when].mean for line in group) for when in (FIRST, END)
            )
            ranges.append((group[0].model, group[0].trainer, group[0].side, first, end))
    adag = [each for each in ranges if each[1] == "ADAG"]
    if not adag or len(ranges) == len(adag):
        return None
    told, best = [], 0
    for model, _, side, first, _ in adag:
        others = [each[3] for each in ranges if each[0] == model and each[1] != "ADAG"]
        steadier = sum(other < first for other in others)
        best += steadier == 0
        told.append(
            f"{model}, {side}: {first:.1f} points between its best and worst batch after epoch 1, "
            f"{steadier} of {len(others)} others change less"
        )
    return Finding(
        "ADAG is robust to the batch size.",
        f"{_verdict(best, len(adag))} {'; '.join(told)}.",
        [
            ["model", "side", "range after epoch 1, points", "range at the end, points"],
            *([e[0], e[2], f"{e[3]:.1f}", f"{e[4]:.1f}"] for e in sorted(ranges)),
        ],
    )


def is_downpour_behind(lines: Sequence[Line]) -> Finding | None:
    """Compare DOWNPOUR with ADAG and AEASGD of as many workers."""
    rows, slower, less, total = [], 0, 0, 0
    others = {_place(line, line.trainer): line for line in lines}
    for line in lines:
        for name in ("ADAG", "AEASGD"):
            other = others.get(_place(line, name))
            if line.trainer != "DOWNPOUR" or other is None:
                continue
            ratio = line.seconds[END].mean / other.seconds[END].mean
            points = _points(line.accuracy[END].mean - other.accuracy[END].mean)
            slower, less, total = slower + (ratio > 1), less + (points < 0), total + 1
            rows.append(
                [
                    *(line.model, str(line.batch), str(line.workers), name),
                    *(f"{ratio:.2f}", f"{points:+z.1f}"),
                ]
            )
    if not total:
        return None
    head = ["model", "batch", "workers", "against", "time: DOWNPOUR / it", "accuracy, points"]
    return Finding(
        "DOWNPOUR is slow, and less accurate than ADAG and AEASGD.",
        f"Slower: {_verdict(slower, total).lower()} {slower} of {total} times. Less accurate at "
        f"the end: {_verdict(less, total).lower()} {less} of {total} times.",
        [head, *rows],
    )


def is_single_unsteady(lines: Sequence[Line]) -> Finding | None:
    """Compare how far the seeds of SingleTrainer lie apart with those of ``local``."""
    pairs = [(s, local) for s, local in _with_local(lines, 1) if s.trainer == "SingleTrainer"]
    pairs = [(single, local) for single, local in pairs if min(single.seeds, local.seeds) > 1]
    if not pairs:
        return None
    wider = sum(s.accuracy[END].width > local.accuracy[END].width for s, local in pairs)
    failed = sum(single.failed for single, _ in pairs)
    widths = [
        (_points(s.accuracy[END].width), _points(local.accuracy[END].width)) for s, local in pairs
    ]
    rows = [
        [single.model, str(single.batch), f"{ours:.1f}", f"{theirs:.1f}"]
        for (single, _), (ours, theirs) in zip(pairs, widths, strict=True)
    ]
    return Finding(
        "SingleTrainer does not work stably.",
        f"{_verdict(wider, len(pairs))} Its seeds lie further apart than those of local {wider} "
        f"of {len(pairs)} times; {failed} of its runs failed. Between its best and worst seed at "
        f"the end lie {max(ours for ours, _ in widths):.1f} points at most, of local "
        f"{max(theirs for _, theirs in widths):.1f}.",
        [["model", "batch", "SingleTrainer: seeds apart, points", "local"], *rows],
    )


def is_batch_a_trade(lines: Sequence[Line]) -> Finding | None:
    """Compare the smallest batch with the largest, in time and accuracy of the first epoch."""
    rows, trades, total = [], 0, 0
    for group in _groups(lines, lambda line: (line.model, line.trainer, line.workers)):
        small, large = (choose(group, key=lambda line: line.batch) for choose in (min, max))
        if small.batch == large.batch:
            continue
        ratio = large.seconds[FIRST].mean / small.seconds[FIRST].mean
        points = _points(large.accuracy[FIRST].mean - small.accuracy[FIRST].mean)
        trades, total = trades + (ratio < 1 and points < 0), total + 1
        rows.append(
            [
                *(small.model, small.side, f"{small.batch} to {large.batch}"),
                *(f"{ratio:.2f}", f"{points:+z.1f}"),
            ]
        )
    if not total:
        return None
    head = ["model", "side", "batch", "time: largest / smallest", "accuracy, points"]
    return Finding(
        "A larger batch trades accuracy for time.",
        f"{_verdict(trades, total)} From the smallest to the largest batch the first epoch is "
        f"quicker and less accurate {trades} of {total} times.",
        [head, *rows],
    )


def _verdict(times: int, total: int) -> str:
    """Say in a word how often a statement holds.

    Examples
    --------
    >>> _verdict(4, 4), _verdict(0, 4), _verdict(1, 4)
    ('Holds.', 'Does not hold.', 'Holds in part.')
    """
    if times == total:
        return "Holds."
    return "Holds in part." if times else "Does not hold."


def _with_local(lines: Iterable[Line], least_workers: int = 2) -> list[tuple[Line, Line]]:
    """Pair each line of so many workers with ``local`` of the same model and batch."""
    lines = list(lines)
    local = {(line.model, line.batch): line for line in lines if line.is_local}
    return [
        (line, local[line.model, line.batch])
        for line in lines
        if not line.is_local and line.workers >= least_workers and (line.model, line.batch) in local
    ]


def _groups(lines: Iterable[Line], key: Callable[[Line], object]) -> list[list[Line]]:
    groups: dict[object, list[Line]] = {}
    for line in lines:
        groups.setdefault(key(line), []).append(line)
    return list(groups.values())


def _by_batch(cells: Sequence[tuple[Line, str]], what: str) -> Rows:
    """Return a table with a row a model and side, and a column a batch size."""
    batches = sorted({line.batch for line, _ in cells})
    table: dict[tuple[str, str], dict[int, str]] = {}
    for line, text in cells:
        table.setdefault((line.model, line.side), {})[line.batch] = text
    head = ["model", "side", *(f"batch {batch}: {what}" for batch in batches)]
    return [head, *([*key, *(row.get(b, "") for b in batches)] for key, row in table.items())]


def _place(line: Line, trainer: str) -> tuple[str, int, int, str]:
    return line.model, line.batch, line.workers, trainer


def _range(values: Iterable[float]) -> float:
    several = list(values)
    return _points(max(several) - min(several))


def _points(share: float) -> float:
    return 100 * share
