# ruff: noqa: ARG002  (signatures are those of Keras)
"""What a trainer does as Keras' `fit` does: one case a row of the guide's table.

Each case builds the same model twice. `fit` trains one on arrays, `SingleTrainer` the other on the
columns of a DataFrame, in the same order. `test_like_fit` compares weights and history.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np
from keras import layers, ops

ROWS = 70
BATCH = 16
#: Rows of whole batches.
WHOLE = 64
EPOCHS = 3

random = np.random.default_rng(7)
X = random.normal(size=(ROWS, 4)).astype("float32")
CLASSES = random.integers(0, 3, ROWS)
ONE_HOT = np.eye(3, dtype="float32")[CLASSES]
RARE = (random.random(ROWS) < 0.15).astype("int64")
TARGET = (X @ np.array([1.0, -2.0, 0.5, 0.0], "float32")).astype("float32")
PAIR = np.stack([TARGET, X[:, 0] ** 2], axis=1)
WEIGHTS = random.uniform(0.1, 3.0, ROWS).astype("float32")
WORDS = random.integers(1, 9, (ROWS, 6))
WORDS[:, 4:] *= random.integers(0, 2, (ROWS, 1))  # zeros at the end, which a mask hides
TAGS = WORDS % 3
PIXELS = random.integers(0, 256, (ROWS, 6, 6, 1)).astype("uint8")
MASKS = (PIXELS[..., 0] > 127).astype("uint8")
VOID = np.where(random.random(ROWS) < 0.25, -1, CLASSES)
MISSING = np.where(random.random((ROWS, 2)) < 0.3, np.nan, PAIR).astype("float32")


@dataclass(frozen=True)
class Run:
    """One training, told to `fit` and to a trainer."""

    model: keras.Model  # Compiled, with the weights to start from
    # What `fit` takes
    x: Any = None
    y: Any = None
    # The columns of the DataFrame; by default ``features`` and ``label`` from `x` and `y`
    columns: Mapping[str, Any] | None = None
    # Arguments of the constructor, of `train` and of `fit`
    trainer: Mapping[str, Any] = field(default_factory=dict)
    train: Mapping[str, Any] = field(default_factory=dict)
    fit: Mapping[str, Any] = field(default_factory=dict)
    # Returns new callbacks, for each of both sides
    callbacks: Callable[[], Sequence[keras.callbacks.Callback]] = list
    validation: bool = False  # Whether both validate, on the same rows

    def rows(self) -> Mapping[str, Any]:
        """Return the columns of the DataFrame."""
        if self.columns is not None:
            return self.columns
        return {"features": self.x, "label": self.y}


@dataclass(frozen=True)
class Case:
    """A row of the guide's table."""

    # Part of the table, and what a user brings
    topic: str
    text: str
    run: Callable[[], Run]  # Returns the `Run`; called twice, after the same seed
    # Of a weight or a number of the history, relative above 1; 0 for equal bits, without XLA.
    tolerance: float = 1e-6
    note: str = ""  # What differs from `fit`, for the guide

    @property
    def name(self) -> str:
        """Return the name of the test."""
        return self.run.__name__


CASES: list[Case] = []


def case(topic: str, text: str, **more: Any) -> Callable[[Callable[[], Run]], Callable[[], Run]]:
    """Add a function that returns a `Run` to the table."""

    def add(run: Callable[[], Run]) -> Callable[[], Run]:
        CASES.append(Case(topic, text, run, **more))
        return run

    return add


def net(
    *inner: Any,
    inputs: tuple[int | None, ...] = (4,),
    dtype: str = "float32",
    optimizer: Any = "adam",
    loss: Any = "mse",
    **settings: Any,
) -> keras.Model:
    """Return a compiled stack of layers."""
    model = keras.Sequential([keras.Input(inputs, dtype=dtype), *inner])
    model.compile(optimizer, loss, **settings)
    return model


def classifier(**settings: Any) -> keras.Model:
    """Return a small classifier of three classes."""
    settings = {"loss": "sparse_categorical_crossentropy", **settings}
    return net(layers.Dense(5, "relu"), layers.Dense(3, "softmax"), **settings)


def detector(*metrics: Any, **settings: Any) -> keras.Model:
    """Return a small classifier of a rare class."""
    settings = {"loss": "binary_crossentropy", "metrics": list(metrics), **settings}
    return net(layers.Dense(5, "tanh"), layers.Dense(1, "sigmoid"), **settings)


def regressor(*metrics: Any, **settings: Any) -> keras.Model:
    """Return a small regression of one number."""
    return net(layers.Dense(5, "tanh"), layers.Dense(1), metrics=list(metrics), **settings)


# --- Losses and labels -----------------------------------------------------------------------


@case("Labels", "class numbers, `sparse_categorical_crossentropy`", tolerance=0.0)
def class_numbers() -> Run:
    return Run(classifier(metrics=["accuracy"]), X, CLASSES, validation=True)


@case("Labels", "one-hot arrays, `categorical_crossentropy`")
def one_hot() -> Run:
    loss = keras.losses.CategoricalCrossentropy(label_smoothing=0.1)
    return Run(classifier(loss=loss, metrics=["accuracy"]), X, ONE_HOT)


@case("Labels", "0 and 1, `binary_crossentropy`")
def binary() -> Run:
    return Run(detector("accuracy"), X, RARE)


@case("Labels", "numbers, `mse`", tolerance=0.0)
def numbers() -> Run:
    return Run(regressor("mae"), X, TARGET, validation=True)


@case("Labels", "numbers for an output of shape (1, 6): a forecast with horizon 1")
def horizon() -> Run:
    y = np.concatenate([X, X[:, :2] * 2], axis=1)
    model = net(layers.Reshape((1, 4)), layers.Dense(6))
    return Run(model, X, y[:, None, :], columns={"features": X, "label": y})


@case("Labels", "a class for each step")
def class_for_each_step() -> Run:
    model = net(
        layers.Embedding(9, 4),
        layers.LSTM(5, return_sequences=True),
        layers.Dense(3, "softmax"),
        inputs=(6,),
        dtype="int32",
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    return Run(model, WORDS, TAGS)


@case("Labels", "a mask: a class for each pixel, a `binary` column with a `Field`")
def mask_of_pixels() -> Run:
    from distkeras_grid import Field

    model = net(
        layers.Conv2D(2, 3, padding="same", activation="relu"),
        layers.Conv2D(2, 1, activation="softmax"),
        inputs=(6, 6, 1),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    return Run(
        model,
        PIXELS.astype("float32") / np.float32(255),
        MASKS,
        columns={
            "pixels": [each.tobytes() for each in PIXELS],
            "mask": [each.tobytes() for each in MASKS],
        },
        trainer={
            "features_col": Field("pixels", shape=(6, 6, 1), dtype="uint8", scale=1 / 255),
            "label_col": Field("mask", shape=(6, 6), dtype="uint8"),
        },
    )


@case("Labels", "an image as its own label: an autoencoder")
def autoencoder() -> Run:
    from distkeras_grid import Field

    model = net(
        layers.Conv2D(2, 3, padding="same", activation="relu"),
        layers.Conv2D(1, 3, padding="same"),
        inputs=(6, 6, 1),
    )
    x = PIXELS.astype("float32") / np.float32(255)
    image = Field("pixels", shape=(6, 6, 1), dtype="uint8", scale=1 / 255)
    return Run(
        model,
        x,
        x,
        columns={"pixels": [each.tobytes() for each in PIXELS]},
        trainer={"features_col": image, "label_col": image},
    )


@case("Labels", "classes that a loss ignores (`ignore_class`)")
def ignored_class() -> Run:
    loss = keras.losses.SparseCategoricalCrossentropy(ignore_class=-1)
    return Run(classifier(loss=loss), X, VOID)


@keras.saving.register_keras_serializable("like_fit")
def masked_error(y_true: Any, y_pred: Any) -> Any:
    """Return the mean squared error of the labels that are there."""
    known = ops.logical_not(ops.isnan(y_true))
    return ops.mean(ops.square(ops.where(known, y_true - y_pred, 0.0)), axis=-1)


@case("Labels", "missing labels as NaN, with a loss of your own that masks them")
def missing_labels() -> Run:
    return Run(net(layers.Dense(2), loss=masked_error), X, MISSING)


@case("Labels", "no label, with a loss inside the model (`add_loss`): `label_col=None`")
def no_labels() -> Run:
    inputs = keras.Input((4,))
    outputs = layers.Dense(4)(layers.Dense(2, "tanh", activity_regularizer="l2")(inputs))
    model = keras.Model(inputs, Reconstruction()([inputs, outputs]))
    model.compile("adam")
    return Run(model, X, columns={"features": X}, trainer={"label_col": None})


@keras.saving.register_keras_serializable("like_fit")
class Reconstruction(layers.Layer):
    """Adds the squared error between its two inputs as a loss."""

    def call(self, inputs: Any) -> Any:
        """Return the second input."""
        self.add_loss(ops.mean(ops.square(inputs[0] - inputs[1])))
        return inputs[1]


# --- Models ----------------------------------------------------------------------------------


def two_outputs(**settings: Any) -> keras.Model:
    """Return a model with a class and a number as outputs."""
    inputs = keras.Input((4,), name="features")
    inner = layers.Dense(5, "tanh")(inputs)
    kind = layers.Dense(3, "softmax", name="kind")(inner)
    size = layers.Dense(1, name="size")(inner)
    model = keras.Model(inputs, [kind, size])
    model.compile("adam", **settings)
    return model


TWO_COLUMNS = {"features": X, "label": CLASSES, "size": TARGET}
WHOLE_COLUMNS = {name: values[:WHOLE] for name, values in TWO_COLUMNS.items()}


@case("Models", "two outputs, `loss_weights`, metrics for each")
def two_outputs_by_list() -> Run:
    model = two_outputs(
        loss=["sparse_categorical_crossentropy", "mse"],
        loss_weights=[1.0, 0.3],
        metrics=[["accuracy"], ["mae"]],
    )
    trainer = {"label_col": ["label", "size"]}
    y = [CLASSES[:WHOLE], TARGET[:WHOLE]]
    return Run(model, X[:WHOLE], y, WHOLE_COLUMNS, trainer, validation=True)


@case("Models", "outputs by name, losses and labels as dictionaries")
def two_outputs_by_name() -> Run:
    model = two_outputs(
        loss={"kind": "sparse_categorical_crossentropy", "size": "mse"}, metrics={"size": ["mae"]}
    )
    trainer = {"label_col": {"kind": "label", "size": "size"}}
    y = {"kind": CLASSES[:WHOLE], "size": TARGET[:WHOLE]}
    return Run(model, X[:WHOLE], y, WHOLE_COLUMNS, trainer)


@case("Models", 'an output without a loss, which needs no label: `label_col=["label", None]`')
def output_without_loss() -> Run:
    inputs = keras.Input((4,))
    inner = layers.Dense(5, "tanh", name="inner")(inputs)
    model = keras.Model(inputs, [layers.Dense(3, "softmax", name="kind")(inner), inner])
    model.compile("adam", ["sparse_categorical_crossentropy", None])
    return Run(model, X, CLASSES, TWO_COLUMNS, {"label_col": ["label", None]})


@case("Models", "a dictionary as output")
def dictionary_as_output() -> Run:
    inputs = keras.Input((4,))
    inner = layers.Dense(5, "tanh")(inputs)
    model = keras.Model(
        inputs, {"kind": layers.Dense(3, "softmax")(inner), "size": layers.Dense(1)(inner)}
    )
    model.compile("adam", {"kind": "sparse_categorical_crossentropy", "size": "mse"})
    trainer = {"label_col": {"kind": "label", "size": "size"}}
    y = {"kind": CLASSES[:WHOLE], "size": TARGET[:WHOLE]}
    return Run(model, X[:WHOLE], y, WHOLE_COLUMNS, trainer)


@case("Models", "several inputs, of numbers and of integers")
def several_inputs() -> Run:
    words = keras.Input((6,), dtype="int32", name="words")
    plain = keras.Input((4,), name="plain")
    inner = layers.GlobalAveragePooling1D()(layers.Embedding(9, 3)(words))
    joined = layers.Concatenate()([inner, layers.Dense(3)(plain)])
    model = keras.Model([words, plain], layers.Dense(3, "softmax")(joined))
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    columns = {"words": WORDS, "plain": X, "label": CLASSES}
    trainer = {"features_col": {"words": "words", "plain": "plain"}}
    return Run(model, {"words": WORDS, "plain": X}, CLASSES, columns, trainer)


@case("Models", "batch normalization")
def batch_normalization() -> Run:
    # With Adam the bias before a normalization, whose gradient is 0 but for rounding, is noise.
    inner = [layers.Dense(5, use_bias=False), layers.BatchNormalization(), layers.Dense(1)]
    return Run(net(*inner), X, TARGET, validation=True)


@case("Models", "batch normalization that is frozen, and other frozen layers")
def frozen_layers() -> Run:
    model = net(
        layers.Dense(5, trainable=False),
        layers.BatchNormalization(trainable=False),
        layers.Dense(1),
    )
    return Run(model, X, TARGET)


@case("Models", "dropout, noise and augmentation with a seed", tolerance=0.0)
def seeded_dropout() -> Run:
    model = net(layers.Dense(8, "relu"), layers.Dropout(0.3, seed=3), layers.Dense(1))
    return Run(model, X, TARGET)


@case("Models", "dropout, noise and augmentation without a seed", tolerance=0.0)
def unseeded_dropout() -> Run:
    model = net(
        layers.GaussianNoise(0.1), layers.Dense(8, "relu"), layers.Dropout(0.3), layers.Dense(1)
    )
    return Run(model, X, TARGET)


@case("Models", "masks: `Embedding(mask_zero=True)` and recurrent layers")
def masks() -> Run:
    model = net(
        layers.Embedding(9, 4, mask_zero=True),
        layers.Bidirectional(layers.GRU(3)),
        layers.Dense(3, "softmax"),
        inputs=(6,),
        dtype="int32",
        loss="sparse_categorical_crossentropy",
    )
    return Run(model, WORDS, CLASSES)


@case("Models", "penalties of weights and activities, losses of layers")
def penalties() -> Run:
    model = net(
        layers.Dense(5, kernel_regularizer="l2", activity_regularizer="l1"), layers.Dense(1)
    )
    return Run(model, X, TARGET, validation=True)


@case("Models", "constraints: `NonNeg`, `UnitNorm`, `MaxNorm`")
def constraints() -> Run:
    model = net(
        layers.Dense(5, kernel_constraint="non_neg"),
        layers.Dense(4, kernel_constraint="unit_norm"),
        layers.Dense(1, kernel_constraint=keras.constraints.MaxNorm(0.5)),
        optimizer=keras.optimizers.SGD(0.1),
    )
    return Run(model, X, TARGET)


@case("Models", "adapted preprocessing: `Normalization`")
def adapted_normalization() -> Run:
    normalization = layers.Normalization()
    normalization.adapt(X * 3 + 1)
    return Run(net(normalization, layers.Dense(1)), X * 3 + 1, TARGET)


@keras.saving.register_keras_serializable("like_fit")
class Counter(layers.Layer):
    """Counts its calls in training, as an integer, and notes that there was one."""

    def build(self, shape: Any) -> None:
        """Make the two variables."""
        self.calls = self.add_weight(
            name="calls", shape=(), dtype="int32", initializer="zeros", trainable=False
        )
        self.called = self.add_weight(
            name="called", shape=(), dtype="bool", initializer="zeros", trainable=False
        )

    def call(self, inputs: Any, training: bool = False) -> Any:
        """Return the inputs."""
        if training:
            self.calls.assign(self.calls + 1)
            self.called.assign(True)
        return inputs


@case("Models", "variables of integers and booleans that a layer changes")
def integer_variables() -> Run:
    return Run(net(layers.Dense(3), Counter(), layers.Dense(1)), X, TARGET)


@case("Models", "`mixed_bfloat16`", tolerance=0.0)
def mixed_precision() -> Run:
    policy = keras.dtype_policies.DTypePolicy("mixed_bfloat16")
    model = net(
        layers.Dense(8, "relu", dtype=policy),
        layers.Dense(3, "softmax", dtype="float32"),
        loss="sparse_categorical_crossentropy",
    )
    return Run(model, X, CLASSES)


@case("Models", "a `Lambda` layer, after `keras.config.enable_unsafe_deserialization()`")
def lambda_layer() -> Run:
    return Run(net(layers.Dense(3), layers.Lambda(lambda x: x * 2.0), layers.Dense(1)), X, TARGET)


@keras.saving.register_keras_serializable("like_fit")
class Recommender(keras.Model):
    """A subclassed model that nobody has called yet."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.inner = layers.Dense(5, "tanh")
        self.outer = layers.Dense(1)

    def call(self, inputs: Any) -> Any:
        """Return a number for each row."""
        return self.outer(self.inner(inputs))


@case("Models", "a subclassed model that `fit` would build")
def subclassed_model() -> Run:
    model = Recommender()
    model.compile("adam", "mse")
    return Run(model, X, TARGET)


# --- Training steps of one's own ----------------------------------------------------------------


@keras.saving.register_keras_serializable("like_fit")
class NestedLogs(keras.Model):
    """The first example of Keras' guide to training steps, written anew: its logs are nested."""

    def train_step(self, data: Any) -> dict[str, Any]:
        """Train one batch on TensorFlow."""
        import tensorflow as tf

        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(y=y, y_pred=y_pred)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss)
            else:
                metric.update_state(y, y_pred)
        return {metric.name: metric.result() for metric in self.metrics}


@keras.saving.register_keras_serializable("like_fit")
class OwnTrackers(keras.Model):
    """A training step with trackers of its own, and without a number called loss."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.error = keras.metrics.Mean(name="error")
        self.largest = keras.metrics.MeanAbsoluteError(name="off_by")

    @property
    def metrics(self) -> list[Any]:
        """Return the trackers, which are reset at each epoch."""
        return [self.error, self.largest]

    def train_step(self, data: Any) -> dict[str, Any]:
        """Train one batch on TensorFlow."""
        import tensorflow as tf

        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = ops.mean(ops.square(y[:, None] - y_pred))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        self.error.update_state(loss)
        self.largest.update_state(y[:, None], y_pred)
        return {"error": self.error.result(), "off_by": self.largest.result()}


@keras.saving.register_keras_serializable("like_fit")
class WithoutLabels(keras.Model):
    """A training step that gets the inputs alone."""

    def train_step(self, data: Any) -> dict[str, Any]:
        """Train one batch on TensorFlow."""
        import tensorflow as tf

        with tf.GradientTape() as tape:
            loss = ops.mean(ops.square(data - self(data, training=True)))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        return {"error": loss}


def stepping(kind: type[keras.Model], outputs: int = 1, **settings: Any) -> keras.Model:
    """Return a functional model of a class with its own training step."""
    inputs = keras.Input((4,))
    model = kind(inputs, layers.Dense(outputs)(layers.Dense(5, "tanh")(inputs)))
    model.compile("adam", **settings)
    return model


@case("Training steps", "nested logs, as in the first example of Keras' guide")
def nested_logs() -> Run:
    return Run(stepping(NestedLogs, loss="mse", metrics=["mae"]), X, TARGET)


@case("Training steps", "trackers of your own, no `loss` among the logs")
def own_trackers() -> Run:
    return Run(stepping(OwnTrackers), X, TARGET)


@case("Training steps", "`data` without labels: `label_col=None`")
def step_without_labels() -> Run:
    model = stepping(WithoutLabels, outputs=4)
    return Run(model, X, columns={"features": X}, trainer={"label_col": None})


# --- Metrics ----------------------------------------------------------------------------------


BY_BATCH = (
    "each batch counts by its rows, where `fit` gives a short last batch the weight of one row"
)


@case("Metrics", "a loss as a metric, losses of single outputs", note=BY_BATCH)
def loss_as_metric() -> Run:
    model = regressor("mae", keras.losses.Huber())
    return Run(model, X[:WHOLE], TARGET[:WHOLE], validation=True)


@case("Metrics", "counts: `TruePositives`, `FalseNegatives`")
def counts() -> Run:
    metrics = keras.metrics
    model = detector(metrics.TruePositives(0.2, name="tp"), metrics.FalseNegatives(0.2, name="fn"))
    return Run(model, X, RARE, validation=True)


@case("Metrics", "`Recall`, `Precision`, `AUC`")
def ratios_of_counts() -> Run:
    metrics = keras.metrics
    model = detector(
        metrics.Recall(0.2, name="recall"),
        metrics.Precision(0.2, name="precision"),
        metrics.AUC(name="auc"),
        metrics.AUC(curve="PR", name="pr"),
    )
    return Run(model, X, RARE, validation=True)


@case("Metrics", "a number for each class: `F1Score()`", note="`f1_score_0`, `f1_score_1`, ...")
def vector_of_metrics() -> Run:
    model = classifier(loss="categorical_crossentropy", metrics=[keras.metrics.F1Score(name="f1")])
    return Run(model, X, ONE_HOT, validation=True)


@case("Metrics", "`weighted_metrics`, with sample weights")
def weighted_metrics() -> Run:
    model = classifier(metrics=["accuracy"], weighted_metrics=["accuracy"])
    return Run(
        model,
        X,
        CLASSES,
        columns={"features": X, "label": CLASSES, "weight": WEIGHTS},
        train={"sample_weight_col": "weight"},
        fit={"sample_weight": WEIGHTS},
        validation=True,
    )


@keras.saving.register_keras_serializable("like_fit")
class Spread(keras.metrics.Metric):
    """A metric of one's own, whose state adds: the standard deviation of the predictions."""

    def __init__(self, name: str = "spread", **kwargs: Any) -> None:
        super().__init__(name=name, **kwargs)
        for each in ("total", "squares", "count"):
            setattr(self, each, self.add_weight(name=each, shape=(), initializer="zeros"))

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Add a batch."""
        self.total.assign_add(ops.sum(y_pred))
        self.squares.assign_add(ops.sum(ops.square(y_pred)))
        self.count.assign_add(ops.cast(ops.size(y_pred), "float32"))

    def result(self) -> Any:
        """Return the standard deviation."""
        mean = self.total / self.count
        return ops.sqrt(self.squares / self.count - mean * mean)


@case("Metrics", "a metric of your own whose state adds")
def own_metric() -> Run:
    return Run(regressor(Spread()), X, TARGET, validation=True)


# --- Optimizers -------------------------------------------------------------------------------


@case("Optimizers", "SGD with Nesterov's momentum", tolerance=0.0)
def nesterov() -> Run:
    optimizer = keras.optimizers.SGD(0.05, momentum=0.9, nesterov=True)
    return Run(regressor(optimizer=optimizer), X, TARGET)


@case("Optimizers", "AdamW with weight decay and clipping")
def adamw() -> Run:
    optimizer = keras.optimizers.AdamW(0.01, weight_decay=0.1, global_clipnorm=0.5)
    return Run(regressor(optimizer=optimizer), X, TARGET)


@case("Optimizers", "accumulated gradients (`gradient_accumulation_steps`)")
def accumulated_gradients() -> Run:
    optimizer = keras.optimizers.Adam(0.01, gradient_accumulation_steps=3)
    return Run(regressor(optimizer=optimizer), X, TARGET)


@case("Optimizers", "a schedule: `ExponentialDecay`, counted by the worker's own steps")
def schedule() -> Run:
    rate = keras.optimizers.schedules.ExponentialDecay(0.05, 4, 0.5, staircase=True)
    return Run(regressor(optimizer=keras.optimizers.SGD(rate)), X, TARGET)


@case("Optimizers", "averaged weights (`use_ema=True`)")
def averaged_weights() -> Run:
    optimizer = keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.9)
    return Run(regressor(optimizer=optimizer), X, TARGET)


@case("Optimizers", "averaged weights that overwrite (`ema_overwrite_frequency`)")
def overwriting_averages() -> Run:
    optimizer = keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.9, ema_overwrite_frequency=4)
    return Run(regressor(optimizer=optimizer), X, TARGET)


# --- Weights of rows --------------------------------------------------------------------------


@case("Weights of rows", "`class_weight`")
def class_weight() -> Run:
    weights = {0: 1.0, 1: 2.5, 2: 0.3}
    settings = {"class_weight": weights}
    return Run(classifier(metrics=["accuracy"]), X, CLASSES, train=settings, fit=settings)


@case("Weights of rows", "sample weights, also in the validation", tolerance=0.0)
def sample_weights() -> Run:
    return Run(
        regressor("mae"),
        X,
        TARGET,
        columns={"features": X, "label": TARGET, "weight": WEIGHTS},
        train={"sample_weight_col": "weight"},
        fit={"sample_weight": WEIGHTS},
        validation=True,
    )


# --- Callbacks --------------------------------------------------------------------------------


@case("Callbacks", "`EarlyStopping(restore_best_weights=True)`")
def early_stopping() -> Run:
    def stop() -> list[keras.callbacks.Callback]:
        return [
            keras.callbacks.EarlyStopping("val_loss", min_delta=100.0, restore_best_weights=True)
        ]

    model = regressor(optimizer=keras.optimizers.SGD(0.05))
    return Run(model, X, TARGET, callbacks=stop, validation=True)


@case("Callbacks", "`LearningRateScheduler`: its rate counts from the epoch's first batch")
def learning_rate_scheduler() -> Run:
    def rate(epoch: int, now: float) -> float:
        return now * 0.5 if epoch else now

    model = regressor(optimizer=keras.optimizers.SGD(0.1))
    return Run(model, X, TARGET, callbacks=lambda: [keras.callbacks.LearningRateScheduler(rate)])


# --- Columns ----------------------------------------------------------------------------------


@case("Columns", "integers for an input of integers, up to the type's ends")
def large_integers() -> Run:
    words = WORDS.astype("int64") + 2**24  # not exact in float32
    model = net(
        layers.IntegerLookup(vocabulary=[2**24 + each for each in (3, 5, 8, 1)]),
        layers.Embedding(5, 3),
        layers.Flatten(),
        layers.Dense(1),
        inputs=(6,),
        dtype="int64",
    )
    return Run(model, words, TARGET)
