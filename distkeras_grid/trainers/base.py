"""What all trainers share: ``train`` and ``simulate``, and what is left of a run."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Literal

from distkeras_grid.errors import ConfigurationError
from distkeras_grid.history import History
from distkeras_grid.local_sets.sets import LocalSets
from distkeras_grid.progress import SILENT
from distkeras_grid.rules.parameters import checked_whole
from distkeras_grid.signals import terminable
from distkeras_grid.simulation.cluster import Cluster
from distkeras_grid.trainers.arguments import checked_class_weight
from distkeras_grid.trainers.config import TrainerConfig, TrainingData
from distkeras_grid.trainers.local_data import local_config
from distkeras_grid.trainers.preparation import TrainingJob, prepare
from distkeras_grid.trainers.run_status import RunProgress, run_progress
from distkeras_grid.trainers.saved_run import save as save_run
from distkeras_grid.trainers.server_deaths import ServerDeaths
from distkeras_grid.trainers.simulation import SimulatedRun, simulate

if TYPE_CHECKING:
    import keras
    from pyspark.sql import DataFrame

    from distkeras_grid.spec import RunSpec
    from distkeras_grid.weights import Vector


class Trainer(TrainerConfig):
    """Base of all trainers.

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

    def __post_init__(self) -> None:
        self.history = History()
        self.spec: RunSpec | None = None
        self.run: dict[str, Any] = {}
        self.model: keras.Model | None = None
        # Refuses wrong arguments at once, not after the data have been read.
        self.checked()

    def train(
        self,
        data: DataFrame | str | LocalSets,
        *,
        shuffle: bool = True,
        validation_data: DataFrame | str | None = None,
        callbacks: Sequence[keras.callbacks.Callback] = (),
        class_weight: Mapping[int, float] | Literal["balanced"] | None = None,
        sample_weight_col: str | None = None,
        seed: int | None = None,
    ) -> keras.Model:
        """Train on Spark's executors and return the trained model.

        SIGTERM interrupts it as Ctrl-C does, if it is called in the main thread of a program that
        has no handler of its own.

        Parameters
        ----------
        data : DataFrame, str or LocalSets
            Training rows, or the path of a Parquet data set. The labels are one of its columns.
            With `LocalSets` each worker draws and reads rows by itself.
        shuffle : bool, default True
            Whether to shuffle all rows, in another way in each epoch. False keeps the data's order.
        validation_data : DataFrame or str, optional
            Rows that the driver evaluates at the end of each epoch, with their sample weights if
            they have that column.
        callbacks : sequence of keras.callbacks.Callback, default ()
            Called on the driver at the end of each epoch. Their hooks for batches are not called.
        class_weight : mapping of int to float, or "balanced", optional
            Weight of the samples of each class, by its number; 1 for others. ``"balanced"`` gives
            all classes the same weight in total: rows / (classes * rows of the class). For models
            with one output.
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
        config: TrainerConfig = self.checked()
        if isinstance(data, LocalSets):
            config = local_config(config, data)
        request = training_data(
            data,
            shuffle=bool(shuffle),
            validation_data=validation_data,
            class_weight=class_weight,
            sample_weight=sample_weight_col,
            seed=seed,
        )
        self.check_request(request, callbacks)
        shown = run_progress(None if self.progress else SILENT)
        deaths = ServerDeaths()
        with terminable(), shown as progress:
            while self._train_once(config, request, callbacks, progress, deaths):
                config = config.replace(resume="auto")
        return self.model

    def _train_once(
        self,
        config: TrainerConfig,
        request: TrainingData,
        callbacks: Sequence[keras.callbacks.Callback],
        progress: RunProgress,
        deaths: ServerDeaths,
    ) -> bool:
        """Train as far as the run's server lives; return whether the run goes on with another."""
        with ExitStack() as resources:
            prepared = prepare(
                *(config, request, callbacks, resources, progress), lost_samples=deaths.samples
            )
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
        """Keep the model of a run, whole or not."""
        self.model = self.assemble(model, prepared.centers)

    def simulate(
        self,
        data: Any,
        cluster: Cluster,
        *,
        shuffle: bool = True,
        validation_data: Any = None,
        seed: int | None = None,
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
        data : tuple of ndarray, DataFrame or str
            ``(features, labels)`` or ``(features, labels, sample_weights)``, with lists or dicts of
            arrays for several inputs or outputs. Or the rows that `train` takes, which are
            collected on the driver, without sample weights.
        cluster : Cluster
            Workers, speeds, network, failures. Without ``batch_seconds`` the time of a batch is
            measured on this machine.
        shuffle : bool, default True
            Whether to shuffle the rows, in another way in each epoch.
        validation_data : as `data`, optional
            Rows that are evaluated at the end of each epoch, in no simulated time.
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
        if not isinstance(cluster, Cluster):
            raise ConfigurationError(
                f"{type(self).__name__}.simulate() takes the data, such as (features, labels), "
                f"and a Cluster(workers=4). Received as cluster: {type(cluster).__name__}."
            )
        if self.is_model_parallel:
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
        request = training_data(
            data,
            shuffle=bool(shuffle),
            validation_data=validation_data,
            seed=seed,
        )
        return simulate(self.checked(), request, cluster, None if self.progress else SILENT)

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

    def check_request(
        self, data: TrainingData, callbacks: Sequence[keras.callbacks.Callback]
    ) -> None:
        """Refuse what the trainer cannot do, before any work."""

    def execute(self, prepared: TrainingJob, progress: RunProgress) -> keras.Model:
        """Run to the end, and return the model with the weights of the center."""
        return prepared.execute(progress)

    def assemble(self, model: keras.Model, centers: Sequence[Vector]) -> keras.Model:  # noqa: ARG002
        """Return what `train` returns; `centers`: of all workers, where each has its own."""
        return model


def training_data(
    data: Any, *, seed: int | None = None, class_weight: Any = None, **options: Any
) -> TrainingData:
    """Return the arguments of `Trainer.train` or `Trainer.simulate`, checked, as one value."""
    fresh = secrets.randbits(31)
    return TrainingData(
        data,
        seed=fresh if seed is None else checked_whole("seed", seed, least=0),
        seed_chosen=seed is not None,
        class_weight=checked_class_weight(class_weight),
        **options,
    )
