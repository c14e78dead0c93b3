"""Judges of commits: which windows do not look like the others, without sockets, Keras or clocks.

A judge sees a commit before it is folded, as a few numbers (`Measure`), beside those of the commits
that were folded before. It is pure and holds no state; the server remembers for it
(`distkeras_grid.parameter_server.judging`). A run names its judge and the judge's parameters, as it
names its rule, so no code of a user travels to the server.
"""

from __future__ import annotations

import difflib
import statistics
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from numbers import Real
from typing import Any, ClassVar, Literal, get_args

import msgspec

from distkeras_grid.errors import ConfigurationError, UnknownArgumentError
from distkeras_grid.rules.parameters import check_positive
from distkeras_grid.spec import JudgeSpec

#: What happens to a commit that a judge does not want: it is left out, trained again, or the run
#: stops.
OnOutlier = Literal["skip", "refuse", "stop"]


class Measure(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is measured of a commit.

    Parameters
    ----------
    loss : float
        Mean loss of the window.
    norm : float or None
        Euclidean norm of the change of the trainable weights, or of the gradient. Of rules that
        send weights, the change is their distance from the worker's center. None if the worker has
        begun with weights of its own, which the server does not know.
    statistics : float
        Euclidean norm of the distance of the averaged parts (means and variances of batch
        normalization, an optimizer's state that travels) from those of the center.
    cosine : float or None, default None
        Cosine between the change and the center's course, which is the decaying sum of the changes
        that were folded; None if the judge asks for none, or there is no course yet.
    """

    loss: float
    norm: float | None
    statistics: float
    cosine: float | None = None


class Seen(msgspec.Struct, forbid_unknown_fields=True):
    """What is remembered of commits that were folded.

    Parameters
    ----------
    recent : list of Measure
        The newest of them, at most `RECENT`.
    highest_loss : float or None
        The highest loss of all; None before the first one.
    """

    recent: list[Measure] = []
    highest_loss: float | None = None

    def add(self, measure: Measure) -> None:
        """Remember a commit that is folded."""
        self.recent.append(measure)
        del self.recent[:-RECENT]
        highest = self.highest_loss
        self.highest_loss = measure.loss if highest is None else max(highest, measure.loss)


#: Commits that are remembered. Their median follows a falling learning rate.
RECENT = 100


@dataclass(frozen=True)
class Judge(ABC):
    """What every judge has.

    Parameters
    ----------
    on_outlier : {"skip", "refuse", "stop"}, default "skip"
        "skip": the commit is not folded, its rows are lost, and its worker begins anew from the
        center. "refuse": the commit is not folded, and its worker is started again, as one that has
        died. It reads its rows again and trains the same window from the present center, so no row
        is lost. This helps if the fault passes (a flipped bit, a damaged local file); a worker that
        is refused each time is given up, as one that dies each time. "stop": the run ends with
        `OutlierError`.
    """

    name: ClassVar[str]
    on_outlier: OnOutlier = "skip"

    def __post_init__(self) -> None:
        if self.on_outlier not in get_args(OnOutlier):
            raise ConfigurationError(
                f"on_outlier is one of {', '.join(map(repr, get_args(OnOutlier)))}. Received: "
                f"{self.on_outlier!r}."
            )

    @property
    def needs_course(self) -> bool:
        """Whether the judge looks at cosines. Then the server keeps two more vectors."""
        return False

    @abstractmethod
    def find(self, commits: Sequence[Measure], seen: Seen) -> list[str]:
        """Say what is wrong with each of some commits.

        Parameters
        ----------
        commits : sequence of Measure
            Commits that are judged together: those of a round, the first ones of all workers, or
            a single one. All numbers are finite, but for a norm that overflows.
        seen : Seen
            What was folded before; nothing if these are the first ones.

        Returns
        -------
        list of str
            For each commit what is wrong, in words; empty if it may be folded. Whatever else is
            returned or raised ends the run with `JudgeFailedError`.
        """


@dataclass(frozen=True)
class Outliers(Judge):
    """Finds commits whose change or loss is many times as large as those of the others.

    A norm is compared with the median of the newest commits that were folded, as bounds of norms
    are in federated learning (Sun et al., "Can You Really Backdoor Federated Learning?", 2019); a
    loss with the highest one of them, because losses near zero differ by large factors. The first
    commits of all workers are compared with each other: with the lower median, so that of two the
    larger one is suspect.

    Parameters
    ----------
    on_outlier : {"skip", "refuse", "stop"}, default "skip"
        What happens then; see `Judge`.
    factor : float, default 10
        How many times as large; above 1. Norms follow the learning rate and the number of batches,
        so a factor near 1 would find healthy windows, too.
    least_cosine : float, optional
        A commit whose cosine to the center's course is below this is an outlier, too; between -1
        and 1. By default cosines are not computed: those of short windows may be negative, because
        gradients are noisy. The course is a momentum of the folded changes, as in Karimireddy et
        al., "Learning from History for Byzantine Robust Optimization", ICML 2021.

    Examples
    --------
    >>> seen = Seen([Measure(0.7, 2.0, 0.0)] * 20, highest_loss=2.3)
    >>> Outliers().find([Measure(0.6, 1.0, 0.0)], seen)
    ['']
    >>> Outliers().find([Measure(0.6, 50.0, 0.0)], seen)
    ['its change has the norm 50, 25 times the median of the last 20 commits']
    """

    name: ClassVar[str] = "outliers"
    factor: float = 10.0
    least_cosine: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("factor", self.factor)
        if self.factor <= 1:
            raise ConfigurationError(f"factor must be above 1. Received: {self.factor!r}.")
        cosine: Any = self.least_cosine
        if cosine is not None and not (isinstance(cosine, Real) and -1 <= float(cosine) <= 1):
            raise ConfigurationError(
                f"least_cosine must lie between -1 and 1. Received: {self.least_cosine!r}."
            )

    @property
    def needs_course(self) -> bool:
        """Whether there is a least cosine."""
        return self.least_cosine is not None

    def find(self, commits: Sequence[Measure], seen: Seen) -> list[str]:
        """Compare commits with those that were folded, or the first ones with each other."""
        known = seen.recent or commits
        told = (
            f"the median of the last {len(known)} commits"
            if seen.recent
            else f"the median of the first {len(known)} commits"
        )
        norms = [each.norm for each in known if each.norm is not None]
        norm = statistics.median_low(norms) if norms else 0.0
        averaged = statistics.median_low(each.statistics for each in known)
        loss, of_losses = seen.highest_loss, "the highest loss so far"
        if loss is None:
            loss, of_losses = statistics.median_low(each.loss for each in known), told
        return [
            self._beyond("its change has the norm", commit.norm, norm, told)
            or self._beyond("its loss is", commit.loss, loss, of_losses)
            or self._beyond("its averaged parts differ by", commit.statistics, averaged, told)
            or self._against(commit.cosine)
            for commit in commits
        ]

    def _beyond(self, what: str, value: float | None, usual: float, told: str) -> str:
        if value is None or usual <= 0 or value <= self.factor * usual:
            return ""
        return f"{what} {value:.3g}, {value / usual:.3g} times {told}"

    def _against(self, cosine: float | None) -> str:
        if cosine is None or self.least_cosine is None or cosine >= self.least_cosine:
            return ""
        return f"its cosine to the center's course is {cosine:.3g}, below {self.least_cosine:g}"


JUDGES: dict[str, type[Judge]] = {judge.name: judge for judge in (Outliers,)}


def build_judge(name: str, parameters: Mapping[str, Any]) -> Judge:
    """Build a judge from its name and its parameters.

    Parameters
    ----------
    name : str
        A key of `JUDGES`.
    parameters : mapping
        Its parameters by name; those that are left out have their defaults.

    Raises
    ------
    ConfigurationError
        If no judge has this name, or a parameter is unknown or out of range.

    Examples
    --------
    >>> build_judge("outliers", {"factor": 20})
    Outliers(on_outlier='skip', factor=20, least_cosine=None)
    """
    if name not in JUDGES:
        near = difflib.get_close_matches(name, JUDGES, n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        raise ConfigurationError(f"There is no judge {name!r}{hint}. Known: {', '.join(JUDGES)}.")
    known = [field.name for field in fields(JUDGES[name])]
    if unknown := sorted(set(parameters) - set(known)):
        raise UnknownArgumentError.among(f"The judge {name!r}", unknown, known)
    return JUDGES[name](**parameters)


def judge_of(spec: JudgeSpec | None) -> Judge | None:
    """Build the judge that a run's specification names; None if it names none."""
    return None if spec is None else build_judge(spec.name, spec.parameters)


def judge_spec(judge: Any) -> JudgeSpec | None:
    """Return the name and the parameters of a user's judge, from which it is built again.

    Parameters
    ----------
    judge : Judge, str or None
        A judge, or the name of one with its defaults.

    Raises
    ------
    ConfigurationError
        If it is something else, or a judge that `JUDGES` does not name.

    Examples
    --------
    >>> judge_spec("outliers").parameters
    {'on_outlier': 'skip', 'factor': 10.0, 'least_cosine': None}
    """
    if judge is None:
        return None
    found = build_judge(judge, {}) if isinstance(judge, str) else judge
    if JUDGES.get(getattr(found, "name", "")) is not type(found):
        raise ConfigurationError(
            f"validate is a judge such as Outliers(), or one of {', '.join(map(repr, JUDGES))}. "
            f"Received: {judge!r}."
        )
    return JudgeSpec(name=found.name, parameters=asdict(found))
