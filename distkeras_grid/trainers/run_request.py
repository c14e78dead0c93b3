"""The request for a run, as values. The layers below know no trainer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import keras

    from distkeras_grid.engine.compile_settings import CompileSettings
    from distkeras_grid.outliers import Validate
    from distkeras_grid.rules import Rule
    from distkeras_grid.spec import DraftSpec
    from distkeras_grid.trainers.arguments import ClassWeight
    from distkeras_grid.trainers.checkpoint_writer import CheckpointInterval
    from distkeras_grid.trainers.defaults import CommunicationWindow


@dataclass(frozen=True)
class ModelSource:
    """The user's model, and how it is to be compiled."""

    model: keras.Model  # It is not changed
    settings: CompileSettings  # What differs from the model's own ``compile``
    objects: Mapping[str, Any]  # The user's own classes and functions

    @property
    def loss(self) -> Any:
        """The loss or losses with which the model will be compiled."""
        own = getattr(self.model, "loss", None)
        return own if self.settings.loss is None else self.settings.loss

    @property
    def optimizer(self) -> Any:
        """The optimizer, or its name, with which the model will be compiled; None without one."""
        # A model that is not compiled lacks the attribute.
        own = getattr(self.model, "optimizer", None)
        return own if self.settings.optimizer is None else self.settings.optimizer


@dataclass(frozen=True)
class AlgorithmFactory:
    """The part of an algorithm that depends on the workers, the optimizer and the rows."""

    # Gives the update rule for a number of workers and a kind of optimizer
    build_rule: Callable[[int, str], Rule]
    # Gives the `CommunicationWindow` for the rows of the largest seat and a number of workers
    choose_window: Callable[[int, int], CommunicationWindow]
    introduction: str  # First line of the run; may be empty
    stages: int = 1  # Workers that share the layers of one model; 0 for as many as there are slots
    devices: int = 1  # Tasks for each worker; 0 for as many as there are slots
    # The user's function, which looks at each window before it is sent
    validate: Validate | None = None


@dataclass(frozen=True)
class ServerRequest:
    """Where the parameter server is asked to be."""

    host: str | None  # Address of the driver as executors see it; None for Spark's own
    port: int  # 0 for any that is free
    metrics_port: int | None = None  # Port of loopback for the server's figures; None for none


@dataclass(frozen=True)
class DataRequest:
    """What `Trainer.train` or `Trainer.simulate` was given; their docstrings have the meanings.

    `features` and `labels` are the trainer's ``features_col`` and ``label_col``. `seed_given` says
    whether the user gave the seed.
    """

    data: Any
    features: Any
    labels: Any
    shuffle: bool
    seed: int
    seed_given: bool = True
    validation_data: Any = None
    class_weight: ClassWeight = None
    sample_weight: str | None = None


@dataclass(frozen=True)
class CheckpointOptions:
    """Whether and where checkpoints are written, and whether the run goes on from one."""

    folder: str | None  # The directory; None for no checkpoints
    every: CheckpointInterval  # How often
    resume: bool  # Whether the run goes on from the newest checkpoint, where there is one
    # Samples in the history of this driver's run when its server died; None if none has
    lost_samples: int | None = None


@dataclass(frozen=True)
class RunRequest:
    """The request for a run."""

    draft: DraftSpec  # The run, as far as the trainer's arguments say it
    source: ModelSource  # The model
    method: AlgorithmFactory  # The algorithm
    data: DataRequest
    server: ServerRequest  # Where the parameter server is to be
    saving: CheckpointOptions  # Its checkpoints
    engine: str | None = None  # The backend of the workers; default the driver's
