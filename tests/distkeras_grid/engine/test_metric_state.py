"""Metrics as a state that adds: windows are together what ``fit`` says."""

import numpy as np
import pytest

from distkeras_grid.engine.metric_state import (
    as_numbers,
    build_metrics,
    declare_metrics,
    results_of,
)
from distkeras_grid.errors import ConfigurationError
from distkeras_grid.rows import RowBlock, aligned_empty
from tests.engines import engine_of, keras

pytestmark = pytest.mark.tensorflow

BATCH, ROWS, CLASSES = 8, 60, 4
RANDOM = np.random.default_rng(3)
X = RANDOM.normal(size=(ROWS, 3)).astype(np.float32)
NUMBER = (X @ RANDOM.normal(size=3)).astype(np.float32)
CLASS = RANDOM.integers(0, CLASSES, ROWS)
ONE_HOT = np.eye(CLASSES, dtype=np.float32)[CLASS]
RARE = (RANDOM.random(ROWS) < 0.15).astype(np.float32)
WEIGHT = RANDOM.uniform(0, 2, ROWS).astype(np.float32)


def begin_anew():
    # Names of metrics are counted in a process.
    keras.utils.clear_session()
    keras.utils.set_random_seed(2)


def net(units, activation=None):
    begin_anew()
    layers = [keras.Input((3,)), keras.layers.Dense(units, activation=activation)]
    return keras.Sequential(layers)


def two_outputs():
    begin_anew()
    x = keras.Input((3,))
    kind = keras.layers.Dense(CLASSES, "softmax", name="kind")(x)
    return keras.Model(x, [kind, keras.layers.Dense(1, name="size")(x)])


def binary():
    names = ("Recall", "Precision", "TruePositives", "FalseNegatives", "BinaryIoU", "AUC")
    # Without names of their own, Keras counts them in a process: auc_2.
    found = [getattr(keras.metrics, name)(name=name.lower()) for name in names]
    found += [
        keras.metrics.AUC(curve="PR", name="pr"),
        keras.metrics.SensitivityAtSpecificity(0.5, name="at"),
    ]
    model = net(1, "sigmoid")
    model.compile("sgd", "binary_crossentropy", metrics=found)
    return model, (RARE[:, np.newaxis],)


def weighted():
    found = [
        "accuracy",
        keras.metrics.F1Score(),
        keras.metrics.AUC(multi_label=True, name="auc"),
        keras.metrics.TopKCategoricalAccuracy(2),
    ]
    model = net(CLASSES, "softmax")
    terms = {"metrics": found, "weighted_metrics": ["accuracy", "mae"]}
    model.compile("sgd", "categorical_crossentropy", **terms)
    return model, (ONE_HOT, WEIGHT)


def several():
    model = two_outputs()
    losses = ["sparse_categorical_crossentropy", "mse"]
    found = [
        ["accuracy", keras.metrics.MeanIoU(CLASSES, sparse_y_pred=False)],
        [keras.metrics.RootMeanSquaredError()],
    ]
    model.compile("sgd", losses, metrics=found)
    return model, ((CLASS, NUMBER),)


def numbers():
    model = net(1)
    model.compile("sgd", "mse", metrics=["mae", keras.metrics.R2Score()])
    return model, (NUMBER[:, np.newaxis],)


def logging(model, logs_of):
    """Give a model a ``train_step`` that returns something else than its metrics."""
    original = model.train_step

    def train_step(*arguments):
        told = original(*arguments)
        return (logs_of(told[0]), *told[1:]) if isinstance(told, tuple) else logs_of(told)

    model.train_step = train_step
    return model


def nested():
    model, data = numbers()
    return logging(model, lambda logs: {"outer": {"in": dict(logs)}}), data


def blocks_of(x, y, weight=None):
    """Yield the rows in batches, each a block; the last one is shorter."""
    labels = y if isinstance(y, tuple) else (y,)
    for start in range(0, len(x), BATCH):
        part = slice(start, start + BATCH)
        yield RowBlock(
            (x[np.newaxis, part],),
            tuple(each[np.newaxis, part] for each in labels),
            None if weight is None else weight[np.newaxis, part],
        )


def windows(engine, data, count):
    """Train the rows in so many windows; return their results."""
    before, after = (aligned_empty(engine.layout.size) for _ in range(2))
    np.copyto(before, engine.weights())
    blocks = list(blocks_of(X, *data))
    results = []
    for part in np.array_split(np.arange(len(blocks)), count):
        results.append(engine.run(before, [blocks[place] for place in part], after))
        np.copyto(before, after)
    return results


def added(results):
    return sum(np.frombuffer(result.state) for result in results).tobytes()


# Keras' own IoU asks for int64, which JAX does not have.
@pytest.mark.filterwarnings("ignore:Explicitly requested dtype int64")
@pytest.mark.parametrize("make", [binary, weighted, several, nested])
def test_windows_together_say_what_fit_says(make):
    fitted, data = make()
    fitted.jit_compile = False
    y = list(data[0]) if isinstance(data[0], tuple) else data[0]
    terms = {"batch_size": BATCH, "shuffle": False, "verbose": 0}
    history = fitted.fit(X, y, sample_weight=data[1] if data[1:] else None, **terms).history
    model, _ = make()
    results = windows(engine_of(model, jit=False), data, 3)
    found = results_of(model, added(results))
    wanted = as_numbers({name: values[0] for name, values in history.items()})
    assert found == pytest.approx(wanted, rel=2e-6, abs=1e-7)
    assert {name for result in results for name in ("loss", *result.metrics)} == set(wanted)
    assert [result.learning_rate for result in results] == pytest.approx([0.01] * 3)
    # A window's metrics are of that window alone.
    assert results[0].loss != results[1].loss


def test_a_log_of_another_name_is_that_of_the_metric_whose_results_it_has():
    model, data = numbers()
    logging(model, lambda logs: {"loss": logs["mae"], "twice": 2 * logs["mae"]})
    results = windows(engine_of(model, jit=False), data, 3)
    assert [result.sources for result in results] == [{"loss": "mae", "twice": ""}] * 3


def test_a_driver_that_has_trained_nothing_computes_the_results():
    model, data = weighted()
    (result,) = windows(engine_of(model, jit=False), data, 1)
    driver, _ = weighted()
    assert results_of(driver, result.state) is None
    build_metrics(driver, (np.zeros((1, 3), np.float32), np.zeros((1, CLASSES), np.float32)))
    found = results_of(driver, result.state)
    assert found == pytest.approx({"loss": result.loss, **result.metrics})
    assert all(not np.any(v.numpy()) for metric in driver.metrics for v in metric.variables)


def test_a_model_that_tells_no_loss_is_trained():
    model, data = numbers()
    logging(model, lambda logs: {"d_loss": logs["loss"] * 2, "g_loss": logs["loss"]})
    results = windows(engine_of(model, jit=False), data, 2)
    assert [result.loss for result in results] == [None, None]
    assert [sorted(result.metrics) for result in results] == [["d_loss", "g_loss"]] * 2
    assert results[1].sources == {"d_loss": "", "g_loss": "loss"}
    assert results_of(model, b"") is None


@pytest.mark.parametrize(
    ("compiled", "name"),
    [({"loss": "msee"}, "msee"), ({"loss": "mse", "metrics": ["acuracy"]}, "acuracy")],
)
def test_a_driver_refuses_a_loss_or_metric_that_keras_does_not_know(compiled, name):
    model = net(1)
    model.compile("sgd", **compiled)
    with pytest.raises(ConfigurationError, match=name):
        declare_metrics(model, (np.zeros((1, 3), np.float32), np.zeros((1, 1), np.float32)))


def own_metric(adds):
    class Error(keras.metrics.Metric):
        def __init__(self, name="error", **kwargs):
            super().__init__(name=name, **kwargs)
            self.held = self.add_variable((), "zeros", name="held")

        def update_state(self, y_true, y_pred, sample_weight=None):  # noqa: ARG002
            new = keras.ops.max(keras.ops.abs(y_true - y_pred))
            self.held.assign(self.held + new if adds else keras.ops.maximum(self.held, new))

        def result(self):
            return self.held.value

    model = net(1)
    model.compile("sgd", "mse", metrics=[Error()])
    return model


def test_a_metric_of_the_users_whose_state_does_not_add_is_refused():
    data = (NUMBER[:, np.newaxis],)
    assert windows(engine_of(own_metric(adds=True), jit=False), data, 1)[0].metrics["error"] > 0
    with pytest.raises(ConfigurationError, match=r"'error' \(Error\) does not add"):
        windows(engine_of(own_metric(adds=False), jit=False), data, 1)


def test_a_state_too_large_to_travel_is_refused():
    model = net(1, "sigmoid")
    model.compile("sgd", "binary_crossentropy", metrics=[keras.metrics.AUC(num_thresholds=20_000)])
    with pytest.raises(ConfigurationError, match="fewer thresholds"):
        windows(engine_of(model, jit=False), (RARE[:, np.newaxis],), 1)
