"""The request for a run, as values. The layers below know no trainer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import keras

    from distkeras_grid.engine.compile_settings import CompileSettings
    from distkeras_grid.judges import Validate
    from distkeras_grid.rules import Rule
    from distkeras_grid.spec import DraftSpec
    from distkeras_grid.trainers.arguments import ClassWeight
    from distkeras_grid.trainers.checkpointing import Every
    from distkeras_grid.trainers.defaults import WindowChoice


@dataclass(frozen=True)
class ModelSource:
    """The user's model, and how it is to be compiled.

    Parameters
    ----------
    model : keras.Model
        It is not changed.
    settings : CompileSettings
        What differs from the model's own ``compile``.
    objects : mapping of str to object
        The user's own classes and functions.
    """

    model: keras.Model
    settings: CompileSettings
    objects: Mapping[str, Any]

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
class Method:
    """The part of an algorithm that depends on the workers, the optimizer and the rows.

    Parameters
    ----------
    build_rule : callable
        Gives the update rule for a number of workers and a kind of optimizer.
    choose_window : callable
        Gives the `WindowChoice` for the rows of the largest seat and a number of workers.
    introduction : str
        First line of the run; may be empty.
    stages : int, default 1
        Workers that share the layers of one model; 0 for as many as there are slots.
    devices : int, default 1
        Tasks for each worker; 0 for as many as there are slots.
    validate : callable, optional
        The user's function, which looks at each window before it is sent.
    """

    build_rule: Callable[[int, str], Rule]
    choose_window: Callable[[int, int], WindowChoice]
    introduction: str
    stages: int = 1
    devices: int = 1
    validate: Validate | None = None


@dataclass(frozen=True)
class ServerRequest:
    """Where the parameter server is asked to be.

    Parameters
    ----------
    host : str or None
        Address of the driver as executors see it; None for Spark's own.
    port : int
        0 for any that is free.
    metrics_port : int or None, default None
        Port of loopback for the server's figures; None for none.
    """

    host: str | None
    port: int
    metrics_port: int | None = None


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
class SavingRequest:
    """Whether and where checkpoints are written, and whether the run goes on from one.

    Parameters
    ----------
    folder : str or None
        The directory; None for no checkpoints.
    every : Every
        How often.
    resume : bool
        Whether the run goes on from the newest checkpoint, where there is one.
    lost_samples : int, optional
        Samples in the history of this driver's run when its server died; None if none has.
    """

    folder: str | None
    every: Every
    resume: bool
    lost_samples: int | None = None


@dataclass(frozen=True)
class RunRequest:
    """The request for a run.

    Parameters
    ----------
    draft : DraftSpec
        The run, as far as the trainer's arguments say it.
    source : ModelSource
        The model.
    method : Method
        The algorithm.
    data : DataRequest
        The data.
    server : ServerRequest
        Where the parameter server is to be.
    saving : SavingRequest
        Its checkpoints.
    engine : str, optional
        The backend of the workers; default the driver's.
    """

    draft: DraftSpec
    source: ModelSource
    method: Method
    data: DataRequest
    server: ServerRequest
    saving: SavingRequest
    engine: str | None = None
