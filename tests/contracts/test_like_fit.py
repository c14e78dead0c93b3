"""`SingleTrainer` equals `fit` in weights and history, and averaging equals averaging."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

if TYPE_CHECKING:
    import keras
    from pyspark.sql import DataFrame, SparkSession


pytest.importorskip("tensorflow", reason="training steps of the table call TensorFlow")
pytestmark = [pytest.mark.tensorflow, pytest.mark.spark]

from tests.contracts.like_fit import (  # noqa: E402
    BATCH,
    CASES,
    EPOCHS,
    ROWS,
    TARGET,
    Case,
    Run,
    X,
    regressor,
)
from tests.contracts.unlike_fit import REFUSALS, Refusal  # noqa: E402

#: Columns that the history of a run has and that of `fit` only with some callbacks.
OURS = {"learning_rate"}


@pytest.fixture(autouse=True)
def _unsafe_lambdas() -> Iterator[None]:
    import keras
    from keras.src.backend.common import global_state

    keras.config.enable_unsafe_deserialization()
    yield
    global_state.set_global_attribute("safe_mode_saving", None)  # no function of Keras does it


def frame(spark: SparkSession, columns: Mapping[str, Any]) -> DataFrame:
    """Return rows in one partition, so that their order is that of the arrays."""
    import pyarrow as pa

    lists = {
        name: each.tolist() if isinstance(each, np.ndarray) else each
        for name, each in columns.items()
    }
    return spark.createDataFrame(pa.table(lists)).coalesce(1)


def start(case: Case | Refusal) -> Run:
    import keras

    keras.utils.set_random_seed(1)
    return case.run()


def fitted(run: Run) -> tuple[keras.Model, dict[str, list[Any]]]:
    validation = None
    if run.validation:
        weights = run.fit.get("sample_weight")
        validation = (run.x, run.y) if weights is None else (run.x, run.y, weights)
    history = run.model.fit(
        run.x,
        run.y,
        batch_size=BATCH,
        epochs=EPOCHS,
        shuffle=False,
        verbose=0,
        validation_data=validation,
        callbacks=list(run.callbacks()),
        **run.fit,
    )
    found = {}
    for name, values in history.history.items():
        if np.size(values[0]) == 1:
            found[name] = values
        else:
            # The numbers of a vector are columns of their own.
            found |= {f"{name}_{n}": [*each] for n, each in enumerate(zip(*values, strict=True))}
    return run.model, found


def trained(run: Run, spark: SparkSession, **more: Any) -> tuple[keras.Model, dict[str, list[Any]]]:
    from distkeras_grid import SingleTrainer

    rows = frame(spark, run.rows())
    trainer = SingleTrainer(
        run.model, batch_size=BATCH, num_epoch=EPOCHS, progress=False, **run.trainer, **more
    )
    model = trainer.train(
        rows,
        shuffle=False,
        validation_data=rows if run.validation else None,
        callbacks=list(run.callbacks()),
        **run.train,
    )
    return model, trainer.history.history


def differences(name: str, ours: Any, theirs: Any, tolerance: float) -> Iterator[str]:
    """Yield what differs, in units of the number where it is larger than 1."""
    ours, theirs = np.asarray(ours, "float64"), np.asarray(theirs, "float64")
    if ours.shape != theirs.shape:
        yield f"{name}: shape {ours.shape}, fit {theirs.shape}"
    elif ours.size:
        largest = np.max(np.abs(ours - theirs) / np.maximum(1.0, np.abs(theirs)))
        if not largest <= tolerance:
            first = f"{ours.ravel()[:4]}, fit {theirs.ravel()[:4]}"
            yield f"{name}: {largest:.3g} away from fit; {first}"


def cases() -> list[Any]:
    """Return all cases; make test has the first of each topic."""
    first = {each.topic: each for each in reversed(CASES)}
    return [
        pytest.param(
            each,
            id=each.text,
            marks=() if first[each.topic] is each else pytest.mark.full,
        )
        for each in CASES
    ]


@pytest.mark.parametrize("case", cases())
def test_single_trainer_gives_weights_and_history_of_fit(case: Case, spark: SparkSession) -> None:
    run = start(case)
    exact = {"jit": False} if case.tolerance == 0 else {}
    if exact:
        run.model.jit_compile = False
    theirs, expected = fitted(run)
    model, history = trained(start(case), spark, **exact)
    found = []
    for ours, other in zip(model.variables, theirs.variables, strict=True):
        found += differences(other.path, ours, other, case.tolerance)
    missing = expected.keys() - history.keys()
    added = history.keys() - expected.keys() - OURS
    if missing or added:
        found.append(f"history: missing {sorted(missing)}, added {sorted(added)}")
    for name in sorted(expected.keys() & history.keys()):
        found += differences(name, history[name], expected[name], max(case.tolerance, 1e-6))
    assert not found, "\n".join(found)


def test_averaging_trainer_equals_averaging_written_in_plain_keras(spark: SparkSession) -> None:
    import keras

    from distkeras_grid import AveragingTrainer

    keras.utils.set_random_seed(1)
    start = regressor().get_weights()

    def build() -> keras.Model:
        model = regressor()
        model.set_weights(start)
        return model

    models, shares = [build(), build()], np.split(np.arange(ROWS), 2)
    for _ in range(EPOCHS):
        # Of the three batches of a share, two are a window.
        for window in (slice(0, 2 * BATCH), slice(2 * BATCH, None)):
            for model, share in zip(models, shares, strict=True):
                for batch in np.split(share[window], range(BATCH, len(share[window]), BATCH)):
                    model.train_on_batch(X[batch], TARGET[batch])
            both = zip(*(model.get_weights() for model in models), strict=True)
            mean = [(one + other) / 2 for one, other in both]
            for model in models:
                model.set_weights(mean)

    trainer = AveragingTrainer(
        build(),
        num_workers=2,
        batch_size=BATCH,
        num_epoch=EPOCHS,
        communication_window=2,
        progress=False,
    )
    trained = trainer.train(frame(spark, {"features": X, "label": TARGET}), shuffle=False)
    found = []
    for ours, expected in zip(trained.weights, mean, strict=True):
        found += differences(ours.path, ours, expected, 1e-6)
    assert not found, "\n".join(found)


def calls(names: list[str]) -> keras.callbacks.Callback:
    """Return a callback that notes in `names` what is called, with the names of its logs."""
    import keras

    class Calls(keras.callbacks.Callback):
        pass

    def note(hook: str) -> Any:
        def call(self: Any, *arguments: Any) -> None:
            logs = arguments[-1] if arguments and isinstance(arguments[-1], Mapping) else {}
            names.append(f"{hook} {sorted(set(logs) - OURS)}")
            if hook == "train_begin":
                names.append(f"params {sorted(self.params.items())}")

        return call

    for each in ("train", "epoch", "test"):
        for moment in ("begin", "end"):
            setattr(Calls, f"on_{each}_{moment}", note(f"{each}_{moment}"))
    return Calls()


def test_callbacks_are_called_as_by_fit(spark: SparkSession) -> None:
    def noted(names: list[str]) -> Run:
        return Run(regressor("mae"), X, TARGET, callbacks=lambda: [calls(names)], validation=True)

    ours: list[str] = []
    theirs: list[str] = []
    fitted(noted(theirs))
    trained(noted(ours), spark)
    assert ours == theirs


@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda refusal: refusal.text)
def test_what_cannot_be_done_is_refused_in_one_line(refusal: Refusal, spark: SparkSession) -> None:
    from distkeras_grid.errors import GridError

    run = start(refusal)
    with pytest.raises(GridError, match=refusal.error) as error:
        trained(run, spark)
    message = str(error.value)
    assert "\n" not in message
    assert len(message) < 600


def test_the_page_of_the_guide_is_written_from_the_cases() -> None:
    from tests.contracts import fit_table

    assert fit_table.PAGE.read_text(encoding="utf-8") == fit_table.page(), "run make fit-table"
