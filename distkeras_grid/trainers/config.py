"""What a trainer is asked for, without data and cluster: its parameters and what follows from them.

The layers below `Trainer` know no more of it than `TrainerConfig`. A new parameter of all trainers
is one entry of this class.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from distkeras_grid.engine.compile_settings import CompileSettings
from distkeras_grid.errors import ConfigurationError
from distkeras_grid.parameter_server.compression import check_compression
from distkeras_grid.spec import OnNonFinite, Outliers
from distkeras_grid.trainers.arguments import (
    MOST_SERVERS,
    check_servers,
)
from distkeras_grid.trainers.defaults import CommunicationWindow, choose_window
from distkeras_grid.trainers.parameters import Parameterized, parameter

if TYPE_CHECKING:
    import keras

    from distkeras_grid.outliers import Validate
    from distkeras_grid.parameter_server.compression import Compression
    from distkeras_grid.rules import DeepGradientCompression, Rule
    from distkeras_grid.spark.columns import FeatureColumns, LabelColumns
    from distkeras_grid.spec import Share
    from distkeras_grid.trainers.arguments import ClassWeight

#: The highest port of a host.
MOST_PORT = 65535


@dataclass(frozen=True)
class TrainingData:
    """What `Trainer.train` or `Trainer.simulate` is asked for, by the names of its arguments."""

    data: Any
    shuffle: bool
    seed: int
    seed_chosen: bool = True  # Whether the user has given the seed
    validation_data: Any = None
    class_weight: ClassWeight = None
    sample_weight: str | None = None


class ModelParameter(Parameterized):
    """The model, the first argument of a trainer."""

    keras_model: keras.Model = parameter(
        kw_only=False,
        text="keras.Model",
        doc="Any model that Keras can save. It is not changed.",
    )


class TrainerConfig(ModelParameter, ABC):
    """The parameters that all trainers have, and what differs between trainers beside them."""

    worker_optimizer: Any = parameter(
        default=None,
        kw_only=False,
        text="str or keras.optimizers.Optimizer",
        doc="The workers' optimizer; default the one the model was compiled with.",
    )
    loss: Any = parameter(
        default=None,
        kw_only=False,
        text="str, callable, list or dict",
        doc="As in ``keras.Model.compile``; default what the model was compiled with.",
    )
    metrics: Any = parameter(default=None, kw_only=False, text="list or dict", doc="As `loss`.")
    loss_weights: Any = parameter(default=None, text="list or dict", doc="As `loss`.")
    num_workers: int | None = parameter(
        default=None,
        least=1,
        flag="--workers N",
        doc="Number of workers; by default one for each task slot. A worker is one Spark task for "
        "the whole run.",
    )
    num_servers: int = parameter(
        default=1,
        least=1,
        most=MOST_SERVERS,
        field="servers",
        doc="Parameter servers, over which the center is cut: processes on the driver's host. "
        "Several are for asynchronous trainers with so many workers, or so large a model, that one "
        'server has no core left. They take neither `validate` nor ``on_nonfinite="skip"``.',
    )
    batch_size: int = parameter(
        default=32,
        least=1,
        flag="--batch-size ROWS",
        field="batch_size",
        doc="Rows in a batch of *one* worker. Neither it nor the learning rate is scaled. To "
        "follow ``fit`` with a batch of b, give b / num_workers.",
    )
    features_col: FeatureColumns = parameter(
        default="features",
        text="str, Field, list or dict",
        flag="--features COLUMN[,...]",
        doc="Column of the features, such as ``image`` of tiles; for a model with several inputs a "
        "list in their order, or a dict by their names.",
    )
    label_col: LabelColumns = parameter(
        default="label",
        text="str, Field, list, dict or None",
        flag="--label COLUMN[,...]",
        doc="Column of the labels; for several outputs a list or a dict. None for a model that "
        "needs none.",
    )
    num_epoch: int = parameter(
        default=1, least=1, flag="--epochs N", field="epochs", doc="Passes over the data."
    )
    # In the specification `schedule.window` and `epochs_per_window`, which `build_spec` computes.
    communication_window: int | Literal["epoch", "once"] | None = parameter(
        default=None,
        least=1,
        doc="Batches between two exchanges of a worker, one exchange for each epoch, or a single "
        "one at the end. The default of each trainer is reduced, if necessary, so that an epoch "
        "has at least 20 exchanges. A value that you give is not changed.",
    )
    learning_rate: float | None = parameter(
        default=None,
        above=0,
        doc="Rate of an optimizer given by name; refused beside an optimizer object or the model's "
        "own.",
    )
    custom_objects: Mapping[str, Any] | None = parameter(
        default=None,
        text="mapping of str to object",
        doc="Your own layers, losses and metrics, by name. They are sent to the workers.",
    )
    jit: bool | Literal["auto"] = parameter(
        default="auto",
        field="jit",
        doc="Whether XLA compiles the workers' windows, or PyTorch records their steps. "
        '"auto" means no if it is known to make them slower. XLA never compiles a window of an '
        "epoch or more.",
    )
    master_host: str | None = parameter(
        default=None,
        doc="Address of this driver as executors see it; default ``spark.driver.host``.",
    )
    master_port: int = parameter(
        default=0,
        least=0,
        most=MOST_PORT,
        doc="Port of the parameter server; 0 takes a free one. Further servers take the next ones. "
        "If it is in use, ``spark.port.maxRetries`` ports after it are tried.",
    )
    start_timeout: float = parameter(
        default=300.0,
        above=0,
        field="start_timeout",
        doc="How long a run waits for workers that do not come, and how long one may stay in a "
        "step of its start [s].",
    )
    round_timeout: float | None = parameter(
        default=600.0,
        above=0,
        field="round_timeout",
        doc="How long a worker that trains may give no sign of life before its task is started "
        "again [s]. One that lives must make progress within this time, or within 20 windows if "
        "that is longer. None for no limit.",
    )
    gpu_sharing: bool = parameter(
        default=False,
        field="gpu_sharing",
        doc="Whether several workers may use one GPU. Each takes as much memory as it needs.",
    )
    compression: Literal["bfloat16", "dgc"] | DeepGradientCompression | None = parameter(
        default=None,
        text='"bfloat16", "dgc" or DeepGradientCompression',
        doc='For slow links and trainers that send changes or gradients. "bfloat16" halves the '
        'bytes of an exchange; the center keeps its digits. "dgc" sends the largest thousandth of '
        "each change and keeps the rest for later; in the first four epochs it sends more. The "
        "last line of a run says how many bytes it saved.",
    )
    validate: Outliers | Validate | None = parameter(
        default=None,
        text="Outliers or callable",
        flag="--validate outliers[,factor=20,on_outlier=stop]",
        doc="Which windows are not folded; their worker begins anew from the center. `Outliers` "
        "finds commits whose change or loss is many times as large as those of the others. A "
        "function ``validate(loss, metrics, sent)`` is called by each worker before it sends a "
        "window; what it returns says why that must not be folded, and if it raises, the run ends "
        "with `ValidateError`. The history's `skipped` names worker and window, and says what was "
        "seen.",
    )
    on_nonfinite: OnNonFinite = parameter(
        default="stop",
        flag="--on-nonfinite",
        field="on_nonfinite",
        doc="What happens if a window's loss or weights become NaN or infinite. "
        '"stop": the run ends with `NonFiniteLossError`. "skip": as for an outlier.',
    )
    checkpoint_dir: str | None = parameter(
        default=None,
        flag="--checkpoint-dir URI",
        doc="Folder on any Hadoop path for the run's checkpoints. Each run needs one of its own.",
    )
    checkpoint_every: float | Literal["epoch"] | None = parameter(
        default=None,
        above=0,
        flag="--checkpoint-every INTERVAL",
        doc='Seconds between two checkpoints, or "epoch" for one after each; by default 600 s. The '
        "newest two are kept.",
    )
    resume: Literal["auto"] | None = parameter(
        default=None,
        flag="--resume",
        doc="Whether the run goes on from the newest checkpoint, or begins if there is none yet. "
        "It may have another `num_workers`. Without it, a folder with checkpoints is refused.",
    )
    progress: bool = parameter(default=True, doc="Whether the progress line is shown.")

    #: Batches between two exchanges, unless the user gives them.
    default_window: ClassVar[int]
    #: Whether the workers share one model. Those of a simulated cluster have one each.
    is_model_parallel: ClassVar[bool] = False

    @abstractmethod
    def build_rule(self, workers: int, optimizer: str) -> Rule:
        """Return the update rule of a run; `optimizer`: the worker's, such as ``"Adam"``."""

    @property
    def trainer_name(self) -> str:
        """Name of the trainer's class."""
        return type(self).__name__

    @property
    def requested_workers(self) -> int | None:
        """The number of workers that the user, or the trainer itself, asks for; None for any."""
        return self.num_workers

    @property
    def optimizer_rate(self) -> float | None:
        """The rate that the worker optimizer is given, None for its own."""
        return self.learning_rate

    @property
    def share(self) -> Share:
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

    def window_by_default(self, workers: int) -> int:  # noqa: ARG002
        """Return the window for this many workers, where the user gives none."""
        return self.default_window

    def choose_window(self, seat_rows: int, workers: int) -> CommunicationWindow:
        """Return the communication window, for the rows of the largest of `workers` seats."""
        default = self.window_by_default(workers)
        return choose_window(self.communication_window, default, seat_rows, self.batch_size)

    def choose_local_window(self, seat_rows: int, workers: int) -> CommunicationWindow:
        """Return the communication window of a run on local sets."""
        return self.choose_window(seat_rows, workers)

    def arguments(self) -> dict[str, Any]:
        """Return the trainer's own arguments, which not all trainers have, for ``run.json``."""
        common = TrainerConfig.parameters
        return {name: value for name, value in self.get_params().items() if name not in common}

    def spec_fields(self) -> dict[str, Any]:
        """Return the arguments that become fields of a run's specification as they are."""
        return {
            each.field: getattr(self, name) for name, each in self.parameters.items() if each.field
        }

    def compile_settings(self) -> CompileSettings:
        """Return what differs from the model's own ``compile``."""
        return CompileSettings(
            optimizer=self.worker_optimizer,
            loss=self.loss,
            metrics=self.metrics,
            loss_weights=self.loss_weights,
            learning_rate=self.optimizer_rate,
        )

    @property
    def loss_in_use(self) -> Any:
        """The loss or losses with which the model will be compiled."""
        return getattr(self.keras_model, "loss", None) if self.loss is None else self.loss

    @property
    def optimizer_in_use(self) -> Any:
        """The optimizer, or its name, with which the model will be compiled; None without one."""
        # A model that is not compiled lacks the attribute.
        own = getattr(self.keras_model, "optimizer", None)
        return own if self.worker_optimizer is None else self.worker_optimizer

    @property
    def objects(self) -> dict[str, Any]:
        """The user's own classes and functions."""
        return dict(self.custom_objects or {})

    @property
    def exchange_compression(self) -> Compression | None:
        """How vectors travel; None as they are."""
        return check_compression(self.compression)

    @property
    def validate_function(self) -> Validate | None:
        """The user's function, which looks at each window before it is sent."""
        return None if isinstance(self.validate, Outliers) else self.validate

    def checked(self) -> Self:
        """Return a copy with plain values, after all checks that need neither data nor cluster."""
        config = super().checked()
        config.check()
        return config

    def check(self) -> None:
        """Refuse arguments that do not go together; each is of its type and in its range."""
        if not hasattr(self.keras_model, "get_config") or not hasattr(self.keras_model, "fit"):
            raise ConfigurationError(
                f"keras_model must be a Keras 3 model. Received: {type(self.keras_model)!r}."
            )
        rule, who = self.build_rule(self.requested_workers or 1, ""), self.trainer_name
        check_compression(self.compression)
        check_servers(who, self.num_servers, rule, self.get_params())
        # Further servers take the next ports.
        if self.master_port > (most := MOST_PORT + 1 - self.num_servers):
            raise ConfigurationError(
                f"master_port must be at most {most} with num_servers={self.num_servers}. "
                f"Received: {self.master_port}."
            )
        self._check_checkpoints()
        self.compile_settings()
        self._check_validate()

    def _check_checkpoints(self) -> None:
        if self.checkpoint_dir == "":
            raise ConfigurationError(
                "checkpoint_dir is a folder on any Hadoop path. Received: ''. Leave it out for a "
                "run without checkpoints."
            )
        dependent = {"checkpoint_every": self.checkpoint_every, "resume": self.resume}
        for name, value in dependent.items():
            if self.checkpoint_dir is None and value is not None:
                raise ConfigurationError(
                    f"Without checkpoint_dir there are no checkpoints. Received: {name}={value!r}."
                )

    def _check_validate(self) -> None:
        function: Any = self.validate_function
        if function is not None and (not callable(function) or isinstance(function, type)):
            raise ConfigurationError(
                "validate is Outliers(), or a function of a window's loss, metrics and what is "
                f"sent. Received: {function!r}."
            )
