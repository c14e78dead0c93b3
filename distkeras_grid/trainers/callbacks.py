"""Validation and Keras callbacks, on the driver, at the end of each epoch.

They see a model with the center of the commit that ended the epoch. A single worker, and workers in
rounds, wait for them (`ScheduleSpec.epoch_barrier`). Elsewhere what a callback changes (stop,
learning rate) reaches a worker with its next reply.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from distkeras_grid.engine.keras_model import set_center
from distkeras_grid.engine.metric_state import results_of
from distkeras_grid.engine.optimizers import rate_of
from distkeras_grid.history import History
from distkeras_grid.records import EpochEnded, EpochRecord
from distkeras_grid.trainers.callback_state import callback_states, restore_callbacks
from distkeras_grid.trainers.run import CallbackDecision
from distkeras_grid.trainers.validation import evaluate

if TYPE_CHECKING:
    import keras

    from distkeras_grid.feeding.source import ArraySource
    from distkeras_grid.rules import Rule
    from distkeras_grid.trainers.checkpoint_writer import SavedObserver
    from distkeras_grid.weights import Vector, WeightLayout


class CallbackRunner:
    """Writes the center into the driver's model, validates it and calls the callbacks."""

    def __init__(
        self,
        model: keras.Model,
        history: History,
        callbacks: Sequence[keras.callbacks.Callback],
        validation: ArraySource | None,
        epochs: int,
        steps: int,
        layout: WeightLayout,
        rule: Rule,
    ) -> None:
        import keras

        self._model = model
        self._layout, self._rule = layout, rule
        self._history = history
        self._validation = validation
        self._own_callbacks = list(callbacks)
        self._callbacks = keras.callbacks.CallbackList(
            list(callbacks), model=model, epochs=epochs, steps=steps, verbose=0
        )
        self._epochs = epochs
        # The workers' rate: their copy of the model starts with it.
        self._rate = self._learning_rate()
        # What a run that goes on begins the present epoch with; None between two epochs.
        self._before_epoch: dict[str, Any] | None = None
        # Those of the last epoch, with what callbacks have added.
        self._logs: dict[str, Any] = {}
        self.stopped = False

    @property
    def needs_center(self) -> bool:
        """Whether anything uses the center at the end of an epoch."""
        return bool(self._own_callbacks) or self._validation is not None

    def begin(self, saved: SavedObserver | None = None) -> CallbackDecision:
        """Call the callbacks at the start; return the settings of the epoch that begins."""
        self._model.stop_training = False
        self._callbacks.on_train_begin()
        if saved is not None:
            restore_callbacks(
                self._own_callbacks, [(each.kind, each.attributes) for each in saved.callbacks]
            )
            self._set_rate(saved.rate)
        self._begin_epoch(len(self._history.epoch_records))
        self._changed_rate()
        # The server may have been saved before it was told, and may know of no rate at all.
        return CallbackDecision(learning_rate=self._rate if self._own_callbacks else None)

    def _begin_epoch(self, epoch: int) -> None:
        if epoch < self._epochs:
            self._before_epoch = self._state()
            # Keras' LearningRateScheduler sets the rate of the epoch here.
            self._callbacks.on_epoch_begin(epoch)

    def to_saved(self) -> dict[str, Any]:
        """Return what the observer and the callbacks remember, as `SavedObserver` names it.

        It is the state before the present epoch began, because a run that goes on begins it again.
        """
        return self._before_epoch or self._state()

    def _state(self) -> dict[str, Any]:
        callbacks = callback_states(self._own_callbacks)
        return {"rate": self._learning_rate(), "callbacks": callbacks}

    def record(self, event: EpochEnded) -> EpochRecord:
        """Record an epoch of a run that ends early, without validation and callbacks."""
        self._before_epoch = None
        return self._history.add_epoch(event, results=results_of(self._model, event.state))

    def __call__(
        self, event: EpochEnded, center: Vector | None
    ) -> tuple[EpochRecord, CallbackDecision]:
        """Record an epoch; see `distkeras_grid.trainers.run.EpochCallback`."""
        validation: dict[str, float] = {}
        results = results_of(self._model, event.state)
        if center is not None:
            set_center(self._model, center, self._layout, self._rule)
        if self._validation is not None:
            validation = evaluate(self._model, self._validation, self._callbacks)
        record = self._history.add_epoch(event, results=results, validation=validation)
        self._before_epoch = None
        # As in fit, where only a callback that sets the rate adds it.
        self._logs = {**record.logs()}
        self._logs.pop("learning_rate", None)
        self._callbacks.on_epoch_end(record.epoch - 1, self._logs)
        self.stopped = bool(self._model.stop_training)
        if not self.stopped:
            self._begin_epoch(record.epoch)
        return record, CallbackDecision(
            stop=True if self.stopped else None, learning_rate=self._changed_rate()
        )

    def finalize(self, center: Vector) -> keras.Model:
        """Return the model of a run that is complete.

        If a callback stopped the run, the model keeps the weights of that epoch, or those that the
        callback restored. Otherwise it receives the last center.
        """
        if not self.stopped:
            set_center(self._model, center, self._layout, self._rule)
        return self._model

    def end(self) -> None:
        """Call the callbacks at the end of training."""
        self._callbacks.on_train_end(self._logs)

    def load_state(self, center: Vector) -> keras.Model:
        """Put the center of a run that ends early into the model, and return the model."""
        set_center(self._model, center, self._layout, self._rule)
        return self._model

    def _set_rate(self, rate: float | None) -> None:
        if rate is not None and self._rate is not None:
            self._model.optimizer.learning_rate = rate
            self._rate = self._learning_rate()

    def _changed_rate(self) -> float | None:
        """Return the rate if it differs from the workers', who receive it next."""
        before, self._rate = self._rate, self._learning_rate()
        return self._rate if self._rate != before else None

    def _learning_rate(self) -> float | None:
        """Return the rate, None for a schedule, which counts the steps of each worker."""
        return rate_of(self._model.optimizer)
