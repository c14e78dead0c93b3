"""What all trainers share: one constructor, one ``train``, one way a run is prepared."""

from __future__ import annotations

import inspect
import os
import secrets
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypedDict

from distkeras_grid.engine.compile_settings import CompileSettings
from distkeras_grid.engine.custom_objects import register_objects
from distkeras_grid.errors import ConfigurationError, UnknownArgumentError
from distkeras_grid.history import History
from distkeras_grid.local_sets.sets import LocalSets
from distkeras_grid.outliers import Validate
from distkeras_grid.parameter_server.compression import check_compression
from distkeras_grid.progress import SILENT
from distkeras_grid.rules import compression_spec, rule_of, spec_of
from distkeras_grid.signals import terminable
from distkeras_grid.simulation.cluster import Cluster
from distkeras_grid.spec import (
    AlgorithmSpec,
    DraftSpec,
    ExchangeSpec,
    LimitsSpec,
    Outliers,
    PaceSpec,
    RunSpec,
)
from distkeras_grid.trainers.arguments import (
    MOST_SERVERS,
    check_cutting_engine,
    checked_class_weight,
    checked_engine,
    checked_positive,
    checked_servers,
    checked_whole,
)
from distkeras_grid.trainers.checkpoint_writer import checked_every
from distkeras_grid.trainers.defaults import CommunicationWindow, choose_window
from distkeras_grid.trainers.local_data import local_draft
from distkeras_grid.trainers.preparation import TrainingJob, prepare
from distkeras_grid.trainers.run_request import (
    AlgorithmFactory,
    CheckpointOptions,
    DataRequest,
    ModelSource,
    RunRequest,
    ServerRequest,
)
from distkeras_grid.trainers.run_status import RunProgress, run_progress
from distkeras_grid.trainers.saved_run import save as save_run
from distkeras_grid.trainers.server_deaths import ServerDeaths
from distkeras_grid.trainers.simulation import SimulatedRun, simulate
from distkeras_grid.trainers.spec_builder import described_arguments

if TYPE_CHECKING:
    import keras
    from pyspark.sql import DataFrame

    from distkeras_grid.rules import DeepGradientCompression, Rule
    from distkeras_grid.spark.columns import FeatureColumns, LabelColumns
    from distkeras_grid.spec import OnNonFinite, OptimizerState, Share
    from distkeras_grid.weights import Vector


class CommonArguments(TypedDict, total=False):
    """Keyword arguments that every trainer takes; `Trainer` documents them."""

    worker_optimizer: Any
    loss: Any
    metrics: Any
    loss_weights: Any
    num_workers: int | None
    num_servers: int
    batch_size: int
    features_col: FeatureColumns
    label_col: LabelColumns
    num_epoch: int
    communication_window: int | Literal["epoch", "once"] | None
    learning_rate: float | None
    custom_objects: Mapping[str, Any] | None
    jit: bool | Literal["auto"]
    engine: str | None
    master_host: str | None
    master_port: int
    start_timeout: float
    round_timeout: float
    metrics_port: int | None
    gpu_sharing: bool
    compression: Literal["bfloat16", "dgc"] | DeepGradientCompression | None
    validate: Outliers | Validate | None
    on_nonfinite: OnNonFinite
    optimizer_state: OptimizerState
    checkpoint_dir: str | None
    checkpoint_every: float | str | None
    resume: Literal["auto"] | None
    progress: bool


class Trainer(ABC):
    """Base of all trainers.

    Parameters
    ----------
    keras_model : keras.Model
        Any model that Keras can save. It is not changed.
    worker_optimizer : str or keras.optimizers.Optimizer, optional
        The workers' optimizer; default the one the model was compiled with.
    loss, metrics, loss_weights : optional
        As in ``keras.Model.compile``; default what the model was compiled with.
    num_workers : int, optional
        Number of workers; by default one for each task slot. A worker is one Spark task for the
        whole run.
    num_servers : int, default 1
        Parameter servers, over which the center is cut: processes on the driver's host. Several are
        for asynchronous trainers with so many workers, or so large a model, that one server has no
        core left. They take neither `validate` nor ``on_nonfinite="skip"``.
    batch_size : int, default 32
        Rows in a batch of *one* worker. Neither it nor the learning rate is scaled. To follow
        ``fit`` with a batch of b, give b / num_workers.
    features_col : str, Field, list or dict, default "features"
        Column of the features. For a model with several inputs, a list in their order, or a dict by
        their names.
    label_col : str, Field, list, dict or None, default "label"
        Column of the labels; for several outputs as above. None for a model that needs none.
    num_epoch : int, default 1
        Passes over the data.
    communication_window : int, "epoch" or "once", optional
        Batches between two exchanges of a worker, one exchange for each epoch, or a single one at
        the end. The default of each trainer is reduced, if necessary, so that an epoch has at least
        20 exchanges. A value that you give is not changed.
    learning_rate : float, optional
        Rate of an optimizer given by name.
    custom_objects : mapping of str to object, optional
        Your own layers, losses and metrics, by name. They are sent to the workers.
    jit : bool or "auto", default "auto"
        Whether XLA compiles the workers' windows, or PyTorch records their steps. "auto" means no
        if it is known to make them slower. XLA never compiles a window of an epoch or more.
    engine : {"tensorflow", "jax", "torch"}, optional
        Keras' backend on the workers; default the driver's. The model travels as a ``.keras`` file,
        so its own layers must not call the functions of one backend.
    master_host : str, optional
        Address of this driver as executors see it; default ``spark.driver.host``.
    master_port : int, default 0
        Port of the parameter server; 0 takes a free one. Further servers take the next ones.
    start_timeout : float, default 300
        How long a run waits for workers that do not come, and how long one may stay in a step of
        its start [s].
    round_timeout : float, default 600
        How long a worker that trains may give no sign of life before its task is started again
        [s]. One that lives must make progress within this time, or within 20 windows if that is
        longer.
    metrics_port : int, optional
        Port of this host's loopback on which the run tells its figures as Prometheus text, at
        ``/metrics``: samples, staleness, workers, bytes, the server's memory. 0 takes a free one.
    gpu_sharing : bool, default False
        Whether several workers may use one GPU. Each takes as much of its memory as it needs.
    compression : "bfloat16", "dgc" or DeepGradientCompression, optional
        For slow links and trainers that send changes or gradients. "bfloat16" halves the bytes of
        an exchange; the center keeps its digits. "dgc" sends the largest thousandth of each change
        and keeps the rest for later; in the first four epochs it sends more. The last line of a
        run says whether it saved time.
    validate : Outliers or callable, optional
        Which windows are not folded; their worker begins anew from the center. `Outliers` finds
        commits whose change or loss is many times as large as those of the others. A function
        ``validate(loss, metrics, sent)`` is called by each worker before it sends a window; what
        it returns says why that must not be folded, and if it raises, the run ends with
        `ValidateError`. The history's `skipped` names worker and window, and says what was seen.
    on_nonfinite : {"stop", "skip"}, default "stop"
        What happens if a window's loss or weights become NaN or infinite. "stop": the run ends with
        `NonFiniteLossError`. "skip": as for an outlier.
    optimizer_state : {"keep", "reset"}, default "keep"
        What happens to the state of a worker's optimizer, such as its momentum, when the worker
        receives the center. "keep": it is kept. "reset": each window begins with a new optimizer.
        ``history.params`` has the value.
    checkpoint_dir : str, optional
        Folder on any Hadoop path for the run's checkpoints. Each run needs one of its own.
    checkpoint_every : float or str, optional
        How often a checkpoint is written: seconds, or a text such as ``"epoch"`` or ``"2 epochs"``;
        by default every 600 s. The newest two are kept.
    resume : "auto", optional
        Whether the run goes on from the newest checkpoint, perhaps with another `num_workers`. It
        begins if there is none yet. Without it, a folder with checkpoints is refused.
    progress : bool, default True
        Whether the progress line is shown.

    Attributes
    ----------
    history : History
        History of the last run: one row for each accepted window, and one for each epoch.
    spec : RunSpec or None
        The last run as a value: algorithm, layout, schedule, exchange, data, limits. It can be
        printed, compared and saved.
    run : dict
        Content of ``run.json``: the specification, versions, figures.
    model : keras.Model or None
        The model that the last `train` returned. If it was interrupted, or failed after the
        workers had started, the model with the center of that moment.

    Raises
    ------
    UnknownArgumentError
        For a keyword that the trainer does not know.
    ConfigurationError
        For a value out of its range.
    """

    #: Batches between two exchanges, unless the user gives them.
    default_window: ClassVar[int]
    #: First line of a run, if the trainer's name may mislead.
    introduction: ClassVar[str] = ""
    #: Whether the workers share one model. Those of a simulated cluster have one each.
    divides_model: ClassVar[bool] = False
    #: Share of the workers that a synchronous round waits for.
    quorum: float = 1.0

    def __init__(  # noqa: PLR0913 - a user's arguments, all but the model by keyword
        self,
        keras_model: keras.Model,
        worker_optimizer: Any = None,
        loss: Any = None,
        metrics: Any = None,
        *,
        loss_weights: Any = None,
        num_workers: int | None = None,
        num_servers: int = 1,
        batch_size: int = 32,
        features_col: FeatureColumns = "features",
        label_col: LabelColumns = "label",
        num_epoch: int = 1,
        communication_window: int | Literal["epoch", "once"] | None = None,
        learning_rate: float | None = None,
        custom_objects: Mapping[str, Any] | None = None,
        jit: bool | Literal["auto"] = "auto",
        engine: str | None = None,
        master_host: str | None = None,
        master_port: int = 0,
        start_timeout: float = 300.0,
        round_timeout: float = 600.0,
        metrics_port: int | None = None,
        gpu_sharing: bool = False,
        compression: Literal["bfloat16", "dgc"] | DeepGradientCompression | None = None,
        validate: Outliers | Validate | None = None,
        on_nonfinite: OnNonFinite = "stop",
        optimizer_state: OptimizerState = "keep",
        checkpoint_dir: str | None = None,
        checkpoint_every: float | str | None = None,
        resume: Literal["auto"] | None = None,
        progress: bool = True,
        **unknown: Any,
    ) -> None:
        self._refuse_unknown("", unknown)
        self.keras_model = keras_model
        self.worker_optimizer = worker_optimizer
        self.loss = loss
        self.metrics = metrics
        self.loss_weights = loss_weights
        self.num_workers = num_workers
        self.num_servers = num_servers
        self.batch_size = batch_size
        self.features_col = features_col
        self.label_col = label_col
        self.num_epoch = num_epoch
        self.communication_window = communication_window
        self.learning_rate = learning_rate
        self.custom_objects = custom_objects
        self.jit = jit
        self.engine = engine
        self.master_host = master_host
        self.master_port = master_port
        self.start_timeout = start_timeout
        self.round_timeout = round_timeout
        self.metrics_port = metrics_port
        self.gpu_sharing = gpu_sharing
        self.compression = compression
        self.validate = validate
        self.on_nonfinite = on_nonfinite
        self.optimizer_state = optimizer_state
        self.checkpoint_dir = checkpoint_dir
        self.checkpoint_every = checkpoint_every
        self.resume = resume
        self.progress = progress
        self.history = History()
        self.spec: RunSpec | None = None
        self.run: dict[str, Any] = {}
        self.model: keras.Model | None = None
        self._check()

    def __init_subclass__(cls, **keywords: Any) -> None:
        """Give the signature all arguments, also those that a constructor passes on."""
        super().__init_subclass__(**keywords)
        cls.__signature__ = all_arguments(cls)  # type: ignore[attr-defined]

    def get_params(self) -> dict[str, Any]:
        """Return all arguments by name, as they were given."""
        return {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}

    @abstractmethod
    def build_rule(self, workers: int, optimizer: str) -> Rule:
        """Return the update rule of a run.

        Parameters
        ----------
        workers : int
            Number of workers in the run.
        optimizer : str
            Kind of the worker optimizer, such as ``"Adam"``.
        """

    def train(
        self,
        data: DataFrame | str | LocalSets,
        *positional: Any,
        fold: str | None = None,
        shuffle: bool = True,
        validation_data: DataFrame | str | None = None,
        callbacks: Sequence[keras.callbacks.Callback] = (),
        class_weight: Mapping[int | str, float] | Literal["balanced"] | None = None,
        sample_weight_col: str | None = None,
        seed: int | None = None,
        **unknown: Any,
    ) -> keras.Model:
        """Train on Spark's executors and return the trained model.

        SIGTERM interrupts it as Ctrl-C does, if it is called in the main thread of a program that
        has no handler of its own.

        Parameters
        ----------
        data : DataFrame, str or LocalSets
            Training rows, or the path of a Parquet data set. The labels are one of its columns; a
            second positional argument is refused. With `LocalSets` each worker draws and reads
            rows by itself.
        fold : str, optional
            Name of a fold of the data set of tiles whose path is `data`, such as ``"fold_0"``: what
            it holds out becomes the validation data, and the rest is trained on, without the split
            ``test``.
        shuffle : bool, default True
            Whether to shuffle all rows, in another way in each epoch. False keeps the data's order.
        validation_data : DataFrame or str, optional
            Rows that the driver evaluates at the end of each epoch, with their sample weights if
            they have that column.
        callbacks : sequence of keras.callbacks.Callback, default ()
            Called on the driver at the end of each epoch. Their hooks for batches are not called.
        class_weight : mapping of int or str to float, or "balanced", optional
            Weight of the samples of each class, by its number or, if the metadata of the features
            name the classes, by its name; 1 for others. ``"balanced"`` gives all classes the same
            weight in total: rows / (classes * rows of the class). For models with one output.
        sample_weight_col : str, optional
            Column of sample weights, one for each row. It applies to all outputs.
        seed : int, optional
            Seed of the shuffling and of the workers' random layers. By default a new one, which the
            history keeps.

        Returns
        -------
        keras.Model
            A new model with the trained weights, compiled.

        Raises
        ------
        GridError
            If something does not fit or fails; before work starts if possible. See
            `distkeras_grid.errors`.
        """
        self._refuse_unknown(".train()", unknown)
        if positional:
            raise ConfigurationError(
                f"{type(self).__name__}.train() takes one data set: a DataFrame or a path, with "
                "features and labels as columns (features_col, label_col of the trainer). "
                f"Received: {1 + len(positional)} positional arguments; all others go by keyword. "
                "Arrays go to simulate((features, labels), cluster), or into "
                "spark.createDataFrame()."
            )
        if fold is not None:
            data, validation_data = rows_of_fold(data, fold, validation_data)
        request = self.request(
            data,
            shuffle=shuffle,
            validation_data=validation_data,
            class_weight=class_weight,
            sample_weight_col=sample_weight_col,
            seed=seed,
        )
        self.check_request(request.data, callbacks)
        shown = run_progress(None if self.progress else SILENT)
        deaths = ServerDeaths()
        with terminable(), shown as progress:
            while self._train_once(request, callbacks, progress, deaths):
                request = deaths.goes_on(request)
        return self.model

    def _train_once(
        self,
        request: RunRequest,
        callbacks: Sequence[keras.callbacks.Callback],
        progress: RunProgress,
        deaths: ServerDeaths,
    ) -> bool:
        """Train as far as the run's server lives; return whether the run goes on with another."""
        with ExitStack() as resources:
            prepared = prepare(request, callbacks, resources, progress)
            # A run that fails leaves its history and the center of that moment, if there is one,
            # but not the model of an earlier run.
            self.history, self.run, self.model = prepared.history, prepared.description, None
            self.spec = prepared.spec
            try:
                model = self.execute(prepared, progress)
            except BaseException as error:
                if prepared.left is not None:
                    self._keep(prepared.left, prepared)
                if not deaths.survived(error, prepared, progress):
                    raise
                return True
            self._keep(model, prepared)
        return False

    def _keep(self, model: keras.Model, prepared: TrainingJob) -> None:
        """Keep the model of a run, whole or not, and with it the user's own classes."""
        self.model = self.assemble(model, prepared.centers)
        register_objects(self.model, prepared.objects)

    def simulate(
        self,
        data: Any,
        cluster: Cluster,
        *,
        shuffle: bool = True,
        validation_data: Any = None,
        class_weight: Mapping[int | str, float] | Literal["balanced"] | None = None,
        seed: int | None = None,
        **unknown: Any,
    ) -> SimulatedRun:
        """Train in this process, in the simulated time of a cluster.

        The rule, the server's code and the batches are those of `train`. Only the clock and the
        network are simulated. This process holds all rows (a second copy of arrays that you pass)
        and, for each worker, its optimizer's state and one vector of weights. There are three
        vectors while its commit is in transit or waits for a round, and two or three more with deep
        gradient compression. The attributes that `train` sets (`history`, `run`, `model`) do not
        change.

        Parameters
        ----------
        data : tuple of ndarray, DataFrame, str or LocalSets
            ``(features, labels)`` or ``(features, labels, sample_weights)``, with lists or dicts of
            arrays for several inputs or outputs. Or the data that `train` takes: rows are collected
            on the driver, without sample weights. Of `LocalSets` each worker draws what it would
            draw in `train` with the same seed. This process reads the tiles of one window at a time
            from the data set or its mirrors.
        cluster : Cluster
            Workers, speeds, network, failures. Without ``batch_seconds`` the time of a batch is
            measured on this machine, and with it what local sets take.
        shuffle : bool, default True
            Whether to shuffle the rows, in another way in each epoch.
        validation_data : as `data`, optional
            Rows that are evaluated at the end of each epoch, in no simulated time.
        class_weight : mapping of int or str to float, or "balanced", optional
            Weight of the samples of each class; see `train`.
        seed : int, optional
            Seed of the shuffling and of the workers' random layers. By default a new one, which the
            history keeps.

        Returns
        -------
        SimulatedRun
            The trained model, and a history in simulated seconds.

        Raises
        ------
        GridError
            As `train`, and whatever ends a run.
        """
        self._refuse_unknown(".simulate()", unknown)
        if not isinstance(cluster, Cluster):
            raise ConfigurationError(
                f"{type(self).__name__}.simulate() takes the data, such as (features, labels), "
                f"and a Cluster(workers=4). Received as cluster: {type(cluster).__name__}."
            )
        if self.divides_model:
            who = type(self).__name__
            raise ConfigurationError(
                f"{who}'s workers share one model, and those of a simulated cluster have one each. "
                f"Received: a call of {who}.simulate(). Use train(), or simulate another trainer."
            )
        if isinstance(data, LocalSets):
            raise ConfigurationError(
                "A simulated cluster deals rows, and its workers draw none. Received: LocalSets "
                "for simulate(). Use train(), or give the rows."
            )
        if self.num_servers != 1:
            raise ConfigurationError(
                "A simulated cluster has one parameter server. Received: num_servers="
                f"{self.num_servers!r} for simulate(). Leave it out."
            )
        request = self.request(
            data,
            shuffle=shuffle,
            validation_data=validation_data,
            class_weight=class_weight,
            seed=seed,
        )
        return simulate(request, cluster, None if self.progress else SILENT)

    def draft(self) -> DraftSpec:
        """Return the run as far as it follows from the arguments, without model, data and cluster.

        Raises
        ------
        ConfigurationError
            If an argument is out of its range. The message names the first one.
        """
        pace = PaceSpec.checked(
            num_workers=self.workers_asked,
            batch_size=self.batch_size,
            num_epoch=self.num_epoch,
            communication_window=self.communication_window,
        )
        rule = self.build_rule(pace.num_workers or 1, "")
        return DraftSpec(
            algorithm=AlgorithmSpec.checked(
                rule=spec_of(rule),
                trainer=type(self).__name__,
                arguments=described_arguments(self.arguments()),
                quorum=self.quorum,
                optimizer_state=self.optimizer_state,
                own_start=self.own_start,
                jit=self.jit,
            ),
            pace=pace,
            exchange=ExchangeSpec.checked(
                compression=compression_spec(check_compression(self.compression)),
                outliers=self.validate if isinstance(self.validate, Outliers) else None,
                on_nonfinite=self.on_nonfinite,
                servers=checked_servers(
                    type(self).__name__, self.num_servers, rule, self.get_params()
                ),
            ),
            limits=LimitsSpec.checked(
                start_timeout=self.start_timeout,
                round_timeout=self.round_timeout,
                gpu_sharing=self.gpu_sharing,
            ),
            share=self.seats_hold,
        )

    def request(
        self,
        data: Any,
        *,
        shuffle: bool = True,
        validation_data: Any = None,
        class_weight: Mapping[int | str, float] | Literal["balanced"] | None = None,
        sample_weight_col: str | None = None,
        seed: int | None = None,
    ) -> RunRequest:
        """Return everything that `train` or `simulate` asks for, as one value.

        Raises
        ------
        ConfigurationError
            If an argument is out of its range. The message names the first one.
        """
        fresh = secrets.randbits(31)
        asked = DataRequest(
            data=data,
            features=self.features_col,
            labels=self.label_col,
            shuffle=bool(shuffle),
            seed=fresh if seed is None else checked_whole("seed", seed, least=0),
            seed_given=seed is not None,
            validation_data=validation_data,
            class_weight=checked_class_weight(class_weight),
            sample_weight=sample_weight_col,
        )
        draft, choose = self.draft(), self.choose_window
        if isinstance(data, LocalSets):
            draft, choose = local_draft(draft, data), self.choose_local_window
        method = AlgorithmFactory(
            self.build_rule,
            choose,
            self.introduction,
            self.stages,
            self.devices,
            self._validate_request(),
        )
        return RunRequest(
            draft,
            self._source(),
            method,
            asked,
            self._server_request(),
            self._saving_request(),
            self._engine_request(draft),
        )

    def get_training_time(self) -> float:
        """Return the seconds from the first batch to the last fold of the last run."""
        return self.history.training_seconds()

    @property
    def num_updates(self) -> int:
        """Commits that the last run folded into the center."""
        return self.history.num_updates

    def save(self, uri: str, *, overwrite: bool = False) -> None:
        """Write model, history and ``run.json`` of the last run to a folder.

        Parameters
        ----------
        uri : str
            Folder on any Hadoop path (``hdfs:``, ``file:``, ``s3a:``).
        overwrite : bool, default False
            Whether to replace a run that exists there.

        Raises
        ------
        ConfigurationError
            If `train` has not been called.
        OutputExistsError
            If the folder has a run and `overwrite` is not set, or has anything else.
        """
        if self.model is None:
            raise ConfigurationError(
                f"{type(self).__name__} has trained nothing yet; call train()."
            )
        save_run(uri, self.model, self.history, self.run, overwrite=overwrite)

    @property
    def seats_hold(self) -> Share:
        """Which rows each worker trains on: its share, all, or as many drawn at random."""
        return "partition"

    @property
    def stages(self) -> int:
        """Number of workers that share the layers of one model; 0 for as many as slots."""
        return 1

    @property
    def devices(self) -> int:
        """Number of tasks for each worker; 0 for as many as there are slots."""
        return 1

    @property
    def own_start(self) -> bool:
        """Whether all workers but the first draw their own initial weights."""
        return False

    def check_request(  # noqa: B027 - most take anything
        self, data: DataRequest, callbacks: Sequence[keras.callbacks.Callback]
    ) -> None:
        """Refuse what the trainer cannot do, before any work.

        Parameters
        ----------
        data : DataRequest
            The data that `train` was given.
        callbacks : sequence of keras.callbacks.Callback
            The callbacks, likewise.

        Raises
        ------
        ConfigurationError
            Names the argument.
        """

    def execute(self, prepared: TrainingJob, progress: RunProgress) -> keras.Model:
        """Run to the end, and return the model with the weights of the center.

        Parameters
        ----------
        prepared : PreparedRun
            The run.
        progress : RunProgress
            Shown during the run.
        """
        return prepared.execute(progress)

    def assemble(self, model: keras.Model, centers: Sequence[Vector]) -> keras.Model:  # noqa: ARG002
        """Return what `train` returns.

        Parameters
        ----------
        model : keras.Model
            The driver's, with the trained weights of the center.
        centers : sequence of ndarray
            Centers of all workers, where each has its own; else empty.
        """
        return model

    def choose_window(self, seat_rows: int, workers: int) -> CommunicationWindow:
        """Return the communication window, for the rows of the largest of `workers` seats."""
        pace, default = self.draft().pace, self.window_by_default(workers)
        return choose_window(pace.communication_window, default, seat_rows, pace.batch_size)

    def choose_local_window(self, seat_rows: int, workers: int) -> CommunicationWindow:
        """Return the communication window of a run on local sets."""
        return self.choose_window(seat_rows, workers)

    def window_by_default(self, workers: int) -> int:  # noqa: ARG002
        """Return the window for this many workers, where the user gives none."""
        return self.default_window

    @property
    def optimizer_rate(self) -> float | None:
        """The rate that the worker optimizer is given, None for its own."""
        return self.learning_rate

    @property
    def workers_asked(self) -> Any:
        """The number of workers that the user, or the trainer itself, asks for; None for any."""
        return self.num_workers

    def arguments(self) -> dict[str, Any]:
        """Return the trainer's own extras, as they were given, for ``run.json``."""
        common = inspect.signature(Trainer).parameters
        return {name: value for name, value in self.get_params().items() if name not in common}

    def _check(self) -> None:
        if not hasattr(self.keras_model, "get_config") or not hasattr(self.keras_model, "fit"):
            raise ConfigurationError(
                f"keras_model must be a Keras 3 model. Received: {type(self.keras_model)!r}."
            )
        # Refuses wrong arguments at once, not after the data have been read.
        draft = self.draft()
        self._server_request()
        self._saving_request()
        self._engine_request(draft)
        self._source()
        self._validate_request()

    def _source(self) -> ModelSource:
        rate = self.optimizer_rate
        settings = CompileSettings(
            optimizer=self.worker_optimizer,
            loss=self.loss,
            metrics=self.metrics,
            loss_weights=self.loss_weights,
            learning_rate=None if rate is None else checked_positive("learning_rate", rate),
        )
        return ModelSource(self.keras_model, settings, dict(self.custom_objects or {}))

    def _validate_request(self) -> Validate | None:
        """Return the user's function, if `validate` is one."""
        given: Any = self.validate
        if given is None or isinstance(given, Outliers):
            return None
        if not callable(given) or isinstance(given, type):
            raise ConfigurationError(
                "validate is Outliers(), or a function of a window's loss, metrics and what is "
                f"sent. Received: {given!r}."
            )
        function: Validate = given
        return function

    def _server_request(self) -> ServerRequest:
        servers = checked_whole("num_servers", self.num_servers, least=1, most=MOST_SERVERS)
        # Further servers take the next ones.
        port = checked_whole("master_port", self.master_port, least=0, most=65536 - servers)
        metrics = self.metrics_port
        if metrics is not None:
            metrics = checked_whole("metrics_port", metrics, least=0, most=65535)
        return ServerRequest(self.master_host, port, metrics)

    def _engine_request(self, draft: DraftSpec) -> str | None:
        who = type(self).__name__
        if self.divides_model:
            check_cutting_engine(who, self.engine)
        return checked_engine(self.engine, rule_of(draft.algorithm.rule), who)

    def _saving_request(self) -> CheckpointOptions:
        every = checked_every(self.checkpoint_every)
        if self.resume not in (None, "auto"):
            raise ConfigurationError(
                "resume is 'auto', to go on from the newest checkpoint, or None. Received: "
                f"{self.resume!r}."
            )
        given = {"checkpoint_every": self.checkpoint_every, "resume": self.resume}
        if self.checkpoint_dir is None and any(value is not None for value in given.values()):
            name, value = next((n, v) for n, v in given.items() if v is not None)
            raise ConfigurationError(
                f"Without checkpoint_dir there are no checkpoints. Received: {name}={value!r}."
            )
        folder: Any = self.checkpoint_dir
        if folder is not None and not (isinstance(folder, str) and folder):
            raise ConfigurationError(
                f"checkpoint_dir is a folder on any Hadoop path, as text. Received: {folder!r}."
            )
        return CheckpointOptions(folder, every, self.resume is not None)

    def _refuse_unknown(self, call: str, unknown: Mapping[str, Any]) -> None:
        if not unknown:
            return
        kind = type(self)
        constructor = set(inspect.signature(kind).parameters)
        if not call:
            raise UnknownArgumentError.among(kind.__name__, unknown, constructor)
        method = {".train()": kind.train, ".simulate()": kind.simulate}[call]
        owner = f"{kind.__name__}(...)"
        raise UnknownArgumentError.among(
            f"{kind.__name__}{call}", unknown, named_arguments(method), {owner: constructor}
        )


def rows_of_fold(data: Any, fold: str, validation_data: Any) -> tuple[DataFrame, DataFrame]:
    """Return the rows that a fold trains on, and those that it holds out."""
    from distkeras_grid.spark.dataframes import read_tiles

    if not isinstance(data, str | os.PathLike):
        raise ConfigurationError(
            "A fold is one of a data set of tiles, whose path is the data. Received: "
            f"fold={fold!r} and {type(data).__name__}. Give the path, or read the rows with "
            "read_tiles(path, splits=..., fold=...)."
        )
    if validation_data is not None:
        raise ConfigurationError(
            f"What a fold holds out is the validation data. Received: fold={fold!r} and "
            "validation_data. Leave validation_data out, or read the rows to train on with "
            "read_tiles(path, splits=('train',), fold=...)."
        )
    train, held_out = read_tiles(os.fspath(data), splits=("train", "validation"), fold=fold)
    return train, held_out


def named_arguments(function: Any) -> dict[str, inspect.Parameter]:
    """Return the parameters of a function that have a name and can be given."""
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    parameters = inspect.signature(function).parameters.values()
    return {p.name: p for p in parameters if p.kind in named and p.name != "self"}


def all_arguments(kind: type[Any]) -> inspect.Signature:
    """Return the arguments of a class, with those that its constructors pass on to their bases."""
    found: dict[str, inspect.Parameter] = {}
    for base in reversed(kind.__mro__):
        if "__init__" in vars(base) and base is not object:
            found |= named_arguments(vars(base)["__init__"])
    # Those that may be positional come first, and of these those that must be given; dicts keep the
    # order of the common ones.
    ordered = sorted(found.values(), key=lambda p: (p.kind, p.default is not p.empty))
    return inspect.Signature(ordered)


Trainer.__signature__ = all_arguments(Trainer)  # type: ignore[attr-defined]
