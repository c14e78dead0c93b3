"""A training run as one value: algorithm, layout, schedule, exchange, data and limits.

Trainers build a `RunSpec` from their arguments. The driver, the parameter server, the workers, the
simulation and ``run.json`` read the same value. It is frozen, it can be compared, and it travels as
JSON, whose reader refuses unknown fields, missing ones, wrong types and numbers out of their range.
What users give is checked before, by the table of a trainer's parameters.

What is not in it: the model's archive, custom objects, keys and addresses. They are no JSON, or
they belong to one execution of the run.
"""

from __future__ import annotations

import math
from numbers import Real
from typing import Annotated, Any, Literal, Self, TypeAlias, get_args

import msgspec

from distkeras_grid.errors import ConfigurationError, UnknownArgumentError
from distkeras_grid.frozen_struct import FrozenStruct
from distkeras_grid.weights import (
    Section,
    StateSection,
    Variable,
    WeightLayout,
    sections_of_sizes,
    vector_size,
)

#: Whole numbers from 0 or from 1 on, and a share of all workers.
Natural: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]
Positive: TypeAlias = Annotated[int, msgspec.Meta(ge=1)]
Quorum: TypeAlias = Annotated[float, msgspec.Meta(ge=0.5, le=1)]
#: A time limit [s].
Timeout: TypeAlias = Annotated[float, msgspec.Meta(gt=0)]
#: How vectors travel, where not as they are.
CompressionName: TypeAlias = Literal["bfloat16", "dgc"]
#: What happens to a commit with NaN or infinity: it is left out, or the run stops.
OnNonFinite: TypeAlias = Literal["skip", "stop"]
#: Which rows a worker trains on: its share, all of them, or as many, drawn with replacement.
Share: TypeAlias = Literal["partition", "full", "bootstrap"]
#: From which images local tests come: never trained on, or not trained on in the same local set.
TestImages: TypeAlias = Literal["held_out", "others"]


class RuleSpec(FrozenStruct, frozen=True):
    """An update rule by its name."""

    name: str  # A key of `distkeras_grid.rules.RULES`
    # The rule's parameters, JSON values
    parameters: dict[str, Any] = msgspec.field(default_factory=dict)


class CompressionSpec(FrozenStruct, frozen=True):
    """A compression by its name."""

    name: CompressionName  # How the vectors of exchanges travel
    # Parameters of `DeepGradientCompression`; none for ``"bfloat16"``
    parameters: dict[str, Any] = msgspec.field(default_factory=dict)


class Outliers(FrozenStruct, frozen=True):
    """Commits whose change or loss is many times as large as those of the others.

    `distkeras_grid.outliers.outlier` says what is compared.

    Parameters
    ----------
    factor : float, default 10
        How many times as large; above 1. Norms follow the learning rate and the number of batches,
        so a factor near 1 would find healthy windows, too.
    on_outlier : {"skip", "stop"}, default "skip"
        "skip": the commit is not folded, its rows are lost, and its worker begins anew from the
        center. "stop": the run ends with `OutlierError`.

    Raises
    ------
    ConfigurationError
        If a value is out of its range.
    """

    factor: float = 10.0
    on_outlier: OnNonFinite = "skip"

    def __post_init__(self) -> None:
        factor: Any = self.factor
        number = isinstance(factor, Real) and not isinstance(factor, bool)
        if not number or not 1 < factor < math.inf:
            raise ConfigurationError(f"factor must be above 1 and finite. Received: {factor!r}.")
        msgspec.structs.force_setattr(self, "factor", float(factor))
        if self.on_outlier not in get_args(OnNonFinite):
            raise ConfigurationError(
                f"on_outlier is one of {', '.join(map(repr, get_args(OnNonFinite)))}. Received: "
                f"{self.on_outlier!r}."
            )


class AlgorithmSpec(FrozenStruct, frozen=True):
    """How workers train, and how the server puts their results together."""

    rule: RuleSpec  # The update rule
    trainer: str = ""  # Name of the trainer's class
    # The arguments that this trainer has beside the common ones, as they were given
    arguments: dict[str, Any] = msgspec.field(default_factory=dict)
    quorum: Quorum = 1.0  # Share of the workers whose commits close a synchronous round
    own_start: bool = False  # Whether workers but the first draw initial weights of their own
    jit: bool | Literal["auto"] = "auto"  # Whether XLA compiles windows
    backend: str = "tensorflow"  # The backend of Keras on driver and workers
    # What `CompileSettings.to_json` returned
    compile: dict[str, Any] = msgspec.field(default_factory=dict)


class LayoutSpec(FrozenStruct, frozen=True):
    """The sections of the vector by their sizes, in their order, and the optimizer's state."""

    trainable_size: Positive  # Scalars that the update rule moves
    # Scalars that training changes without a gradient; they are averaged
    statistics_size: Natural = 0
    # What workers share of an optimizer beside the vector, where they make the same steps
    state: tuple[Variable, ...] = ()
    # Most bytes of what a worker needs beside the center to go on: its own weights, optimizer,
    # random generators and residual. The server keeps it; 0 if nothing is kept.
    worker_state_limit: Natural = 0

    @classmethod
    def of(
        cls, layout: WeightLayout, state: StateSection | None = None, worker_state_limit: int = 0
    ) -> Self:
        """Return the sizes of a model's layout, and of what workers share and keep beside it."""
        return cls(
            trainable_size=layout.trainable_size,
            statistics_size=layout.statistics_size,
            state=() if state is None else state.variables,
            worker_state_limit=worker_state_limit,
        )

    @property
    def sections(self) -> tuple[Section, ...]:
        """The sections of the vector."""
        return sections_of_sizes(self.trainable_size, self.statistics_size)

    @property
    def size(self) -> int:
        """Scalars in the vector."""
        return vector_size(self.sections)

    @property
    def state_section(self) -> StateSection:
        """The section of the optimizer's state."""
        return StateSection(self.state)


class PreviousProgress(FrozenStruct, frozen=True):
    """What other workers have trained before a run went on with another number of workers."""

    epochs: Natural  # Whole epochs. The present workers begin with the next one.
    version: Natural  # Version of the center with which they begin
    # folded and dropped: Samples in the center, and samples of windows that came after their round
    folded: Natural
    dropped: Natural = 0


class ScheduleSpec(FrozenStruct, frozen=True):
    """How many rows go through the model, in which order, with how many exchanges."""

    # Rows of all workers together; an epoch ends when so many samples more are folded
    rows: Positive
    workers: Positive = 1  # Workers of the run
    batch_size: Positive = 32  # Rows in a batch of one worker
    # Batches between two exchanges; None for one exchange in `epochs_per_window` epochs
    window: Positive | None = None
    epochs: Positive = 1  # Passes over the data
    epochs_per_window: Positive = 1  # Epochs between two exchanges, where `window` is None
    shuffle: bool = True  # Whether each epoch has an order of its own
    seed: Natural = 0  # Seed of the order and of random layers
    bootstrap: bool = False  # Whether a worker trains on rows drawn with replacement from its own
    # Copies of the center that are made while an epoch's samples are folded, the last one at its
    # end; each is kept until the driver fetches it
    snapshots_per_epoch: Natural = 0
    # Whether workers wait at the end of each epoch until the driver's callbacks have acted
    epoch_barrier: bool = False
    # What other workers have trained; None if the number of workers has not changed
    earlier: PreviousProgress | None = None
    # Rows of the largest worker; None if workers differ by one row at most
    largest_share: Positive | None = None

    @property
    def epochs_before(self) -> int:
        """Epochs that other workers have trained."""
        return 0 if self.earlier is None else self.earlier.epochs

    @property
    def epochs_left(self) -> int:
        """Epochs that these workers train."""
        return self.epochs - self.epochs_before

    @property
    def repeated(self) -> int:
        """Samples that other workers have trained in the epoch that begins again."""
        if self.earlier is None:
            return 0
        passed = self.earlier.folded + self.earlier.dropped
        return max(0, passed - self.earlier.epochs * self.rows)

    @property
    def samples(self) -> int:
        """Samples that are trained in the whole run, those that are repeated twice."""
        return self.rows * self.epochs + self.repeated

    def windows_per_epoch(self, rows: int) -> int:
        """Return the windows of an epoch of a worker: as many as those of the smallest share.

        So each worker takes part in each round. Of a worker with a row more, the last window may
        have a batch more.

        Examples
        --------
        >>> schedule = ScheduleSpec(rows=65, workers=2, batch_size=16, window=1)
        >>> schedule.windows_per_epoch(33), schedule.windows_per_epoch(32)
        (2, 2)
        """
        if self.window is None:
            return 1
        if self.largest_share is None:
            rows = min(rows, max(1, self.rows // self.workers))
        return math.ceil(rows / (self.batch_size * self.window))

    @property
    def communication_window(self) -> int | Literal["epoch", "once"]:
        """The window as a number of batches, or the word for a longer one."""
        return self.window or ("epoch" if self.epochs_per_window == 1 else "once")


class ExchangeSpec(FrozenStruct, frozen=True):
    """How commits and replies travel, and which commits are folded."""

    # How vectors are compressed; None sends them as they are
    compression: CompressionSpec | None = None
    outliers: Outliers | None = None  # Which commits are outliers; None takes them all
    on_nonfinite: OnNonFinite = "stop"  # What happens to a commit with NaN or infinity
    servers: Positive = 1  # Parameter servers, over which the center is cut


class LocalSpec(FrozenStruct, frozen=True):
    """What a worker draws for itself in each iteration, in place of a share of the rows."""

    # local_train and local_test: Tiles of a local training set and of a local test set; 0 for no
    # tests
    local_train: Positive
    local_test: Natural = 0
    # Whether test tiles come from images that no set trains on, or from those that the local
    # training set does not use
    test_images: TestImages = "held_out"


class DataSpec(FrozenStruct, frozen=True):
    """What is read of the data."""

    # Path of the data set, or the digest of the DataFrame's plan, ``"plan 0123456789abcdef"``
    source: str = ""
    # The feature columns in the order of the model's inputs: ``name``, and the metadata that
    # `Field.to_metadata` returns
    features: tuple[dict[str, Any], ...] = ()
    # The label of each output of the model, as `features`; None for one without. Empty for a model
    # that takes no labels.
    labels: tuple[dict[str, Any] | None, ...] = ()
    sample_weight: str | None = None  # Name of the column of sample weights
    # Weight of the samples of each class
    class_weight: dict[int, Annotated[float, msgspec.Meta(ge=0)]] | None = None
    share: Share = "partition"  # Which rows a worker trains on
    validation: str | None = None  # Where the validation data come from, as `source`
    # What workers draw for themselves; None where they have shares of the rows
    local: LocalSpec | None = None


class LimitsSpec(FrozenStruct, frozen=True):
    """How long a run may wait, and what a worker takes of its executor."""

    # Seconds that a run waits for workers that do not come, and that one may stay in a step of its
    # start
    start_timeout: Timeout = 300.0
    # Seconds that a worker which trains may be silent, or make no progress; None for no limit
    round_timeout: Timeout | None = 600.0
    threads: Positive = 1  # Cores of a worker
    gpu_sharing: bool = False  # Whether several workers may use one GPU


class RunSpec(FrozenStruct, frozen=True):
    """One training run.

    Parameters
    ----------
    algorithm : AlgorithmSpec
        How workers train, and how the server puts their results together.
    layout : LayoutSpec
        The sections that travel.
    schedule : ScheduleSpec
        Rows, workers, batches, windows, epochs.
    exchange : ExchangeSpec
        How commits and replies travel, and which are folded.
    data : DataSpec
        What is read of the data.
    limits : LimitsSpec
        How long it may wait.

    Examples
    --------
    >>> spec = RunSpec(
    ...     algorithm=AlgorithmSpec(rule=RuleSpec(name="averaging"), quorum=0.8),
    ...     layout=LayoutSpec(trainable_size=100, statistics_size=4),
    ...     schedule=ScheduleSpec(rows=1000, workers=5, batch_size=10, window=2),
    ... )
    >>> spec.size, spec.quorum_of(spec.workers)
    (104, 4)
    >>> RunSpec.from_json(spec.to_json()) == spec
    True
    >>> spec.change(epochs=3, quorum=1.0).schedule.epochs
    3
    """

    algorithm: AlgorithmSpec
    layout: LayoutSpec
    schedule: ScheduleSpec
    exchange: ExchangeSpec = msgspec.field(default_factory=ExchangeSpec)
    data: DataSpec = msgspec.field(default_factory=DataSpec)
    limits: LimitsSpec = msgspec.field(default_factory=LimitsSpec)

    def change(self, **changes: Any) -> Self:
        """Return a copy with other values of some fields, whatever section they are in.

        `changes`: by the name of a field, such as ``epochs=3``, or of a section itself.
        """
        sections = {name: getattr(self, name) for name in self.__struct_fields__}
        owners = {
            name: owner for owner, section in sections.items() for name in section.__struct_fields__
        }
        if unknown := sorted(set(changes) - set(owners) - set(sections)):
            raise UnknownArgumentError.among(type(self).__name__, unknown, [*sections, *owners])
        for name, value in changes.items():
            if name in sections:
                sections[name] = value
        for name, value in changes.items():
            if name not in sections:
                owner = owners[name]
                sections[owner] = msgspec.structs.replace(sections[owner], **{name: value})
        return type(self)(**sections)

    # -- what server, workers and simulation ask most ------------------------------------------

    @property
    def rule(self) -> RuleSpec:
        """The update rule."""
        return self.algorithm.rule

    @property
    def workers(self) -> int:
        """Workers of the run."""
        return self.schedule.workers

    @property
    def rows(self) -> int:
        """Rows of all workers together."""
        return self.schedule.rows

    @property
    def epochs(self) -> int:
        """Passes over the data."""
        return self.schedule.epochs

    @property
    def batch_size(self) -> int:
        """Rows in a batch of one worker."""
        return self.schedule.batch_size

    @property
    def window(self) -> int | None:
        """Batches between two exchanges; None for one in `epochs_per_window` epochs."""
        return self.schedule.window

    @property
    def snapshots_per_epoch(self) -> int:
        """Copies of the center that are made in an epoch."""
        return self.schedule.snapshots_per_epoch

    @property
    def size(self) -> int:
        """Scalars in the vector."""
        return self.layout.size

    @property
    def compression(self) -> CompressionName | None:
        """How the vectors of exchanges travel; None as they are."""
        return None if self.exchange.compression is None else self.exchange.compression.name

    @property
    def skips_nonfinite(self) -> bool:
        """Whether the run goes on without commits that have NaN or infinity."""
        return self.exchange.on_nonfinite == "skip"

    @property
    def may_skip(self) -> bool:
        """Whether a commit may be answered without being folded, for what is in it."""
        return self.skips_nonfinite or self.exchange.outliers is not None

    @property
    def round_timeout(self) -> float:
        """Seconds that a worker which trains may be silent; infinite without a limit."""
        timeout = self.limits.round_timeout
        return math.inf if timeout is None else timeout

    def quorum_of(self, workers: int) -> int:
        """Return how many of so many workers the quorum asks for."""
        # Not 0.8 * 5 itself, which as a float may lie above 4.
        return math.ceil(round(self.algorithm.quorum * workers, 6))

    def largest_share(self) -> int:
        """Return the rows of the largest worker."""
        return self.schedule.largest_share or -(-self.rows // self.workers)

    def steps_per_window(self) -> int:
        """Return the batches of the longest window that a worker may commit."""
        steps = math.ceil(self.largest_share() / self.batch_size)
        if self.window is None:
            return steps * self.schedule.epochs_per_window
        return min(self.window, steps)
