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
from keras import layers, losses, metrics, ops, optimizers

from distkeras_grid.feeding.schema import Field

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
        if self.columns is not None:
            return self.columns
        return {"features": self.x, "label": self.y}


@dataclass(frozen=True)
class Case:
    """A row of the guide's table."""

    # Part of the table, and what a user brings
    topic: str
    text: str
    run: Callable[[], Run]  # Called twice, after the same seed
    # Of a weight or a number of the history, relative above 1; 0 for equal bits, without XLA.
    tolerance: float = 1e-6
    note: str = ""  # What differs from `fit`, for the guide


CASES: list[Case] = []


def case(topic: str, text: str, **more: Any) -> Callable[[Callable[[], Run]], Callable[[], Run]]:
    def add(run: Callable[[], Run]) -> Callable[[], Run]:
        CASES.append(Case(topic, text, run, **more))
        return run

    return add


def cases(topic: str, runs: Mapping[str, Callable[[], Run]], **more: Any) -> None:
    """Add several that need one expression each."""
    CASES.extend(Case(topic, text, run, **more) for text, run in runs.items())


def net(
    *inner: Any,
    inputs: tuple[int | None, ...] = (4,),
    dtype: str = "float32",
    optimizer: Any = "adam",
    loss: Any = "mse",
    **settings: Any,
) -> keras.Model:
    model = keras.Sequential([keras.Input(inputs, dtype=dtype), *inner])
    model.compile(optimizer, loss, **settings)
    return model


def classifier(**settings: Any) -> keras.Model:
    settings = {"loss": "sparse_categorical_crossentropy", **settings}
    return net(layers.Dense(5, "relu"), layers.Dense(3, "softmax"), **settings)


def detector(*metrics: Any, **settings: Any) -> keras.Model:
    settings = {"loss": "binary_crossentropy", "metrics": list(metrics), **settings}
    return net(layers.Dense(5, "tanh"), layers.Dense(1, "sigmoid"), **settings)


def regressor(*metrics: Any, **settings: Any) -> keras.Model:
    return net(layers.Dense(5, "tanh"), layers.Dense(1), metrics=list(metrics), **settings)


def tagger(*inner: Any) -> keras.Model:
    loss = "sparse_categorical_crossentropy"
    inner = (*inner, layers.Dense(3, "softmax"))
    return net(*inner, inputs=(6,), dtype="int32", loss=loss, metrics=["accuracy"])


# --- Losses and labels -----------------------------------------------------------------------

cases(
    "Labels",
    {
        "class numbers, `sparse_categorical_crossentropy`": lambda: Run(
            classifier(metrics=["accuracy"]), X, CLASSES, validation=True
        ),
        "numbers, `mse`": lambda: Run(regressor("mae"), X, TARGET, validation=True),
    },
    tolerance=0.0,
)


SMOOTH = losses.CategoricalCrossentropy(label_smoothing=0.1)


@keras.saving.register_keras_serializable("like_fit")
def masked_error(y_true: Any, y_pred: Any) -> Any:
    """Return the mean squared error of the labels that are there."""
    known = ops.logical_not(ops.isnan(y_true))
    return ops.mean(ops.square(ops.where(known, y_true - y_pred, 0.0)), axis=-1)


cases(
    "Labels",
    {
        "one-hot arrays, `categorical_crossentropy`": lambda: Run(
            classifier(loss=SMOOTH, metrics=["accuracy"]), X, ONE_HOT
        ),
        "0 and 1, `binary_crossentropy`": lambda: Run(detector("accuracy"), X, RARE),
        "a class for each step": lambda: Run(
            tagger(layers.Embedding(9, 4), layers.LSTM(5, return_sequences=True)), WORDS, TAGS
        ),
        "classes that a loss ignores (`ignore_class`)": lambda: Run(
            classifier(loss=losses.SparseCategoricalCrossentropy(ignore_class=-1)), X, VOID
        ),
        "missing labels as NaN, with a loss of your own that masks them": lambda: Run(
            net(layers.Dense(2), loss=masked_error), X, MISSING
        ),
    },
)


@case("Labels", "numbers for an output of shape (1, 6): a forecast with horizon 1")
def horizon() -> Run:
    y = np.concatenate([X, X[:, :2] * 2], axis=1)
    model = net(layers.Reshape((1, 4)), layers.Dense(6))
    return Run(model, X, y[:, None, :], columns={"features": X, "label": y})


#: An image as bytes, and as `fit` gets it.
IMAGE = Field("pixels", shape=(6, 6, 1), dtype="uint8", scale=1 / 255)
IMAGES = PIXELS.astype("float32") / np.float32(255)


def as_bytes(array: np.ndarray) -> list[bytes]:
    return [each.tobytes() for each in array]


@case("Labels", "a mask: a class for each pixel, a `binary` column with a `Field`")
def mask_of_pixels() -> Run:
    model = net(
        layers.Conv2D(2, 3, padding="same", activation="relu"),
        layers.Conv2D(2, 1, activation="softmax"),
        inputs=(6, 6, 1),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    columns = {"pixels": as_bytes(PIXELS), "mask": as_bytes(MASKS)}
    label = Field("mask", shape=(6, 6), dtype="uint8")
    return Run(model, IMAGES, MASKS, columns, {"features_col": IMAGE, "label_col": label})


@case("Labels", "an image as its own label: an autoencoder")
def autoencoder() -> Run:
    inner = [layers.Conv2D(2, 3, padding="same", activation="relu")]
    model = net(*inner, layers.Conv2D(1, 3, padding="same"), inputs=(6, 6, 1))
    columns = {"pixels": as_bytes(PIXELS)}
    return Run(model, IMAGES, IMAGES, columns, {"features_col": IMAGE, "label_col": IMAGE})


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
        self.add_loss(ops.mean(ops.square(inputs[0] - inputs[1])))
        return inputs[1]


class SupervisedContrastiveLoss(losses.Loss):
    """As in Keras' example, without a name that Keras has registered."""

    def __init__(self, temperature: float = 1, name: str | None = None) -> None:
        super().__init__(name=name)
        self.temperature = temperature

    def __call__(self, labels: Any, feature_vectors: Any, sample_weight: Any = None) -> Any:
        labels = ops.reshape(labels, (-1, 1))
        vectors = keras.utils.normalize(feature_vectors, axis=1, order=2)
        logits = ops.divide(ops.matmul(vectors, ops.transpose(vectors)), self.temperature)
        same = ops.cast(ops.equal(labels, ops.transpose(labels)), "float32")
        logs = ops.log_softmax(logits, axis=1)
        return -ops.mean(ops.sum(same * logs, axis=1) / ops.sum(same, axis=1))

    def get_config(self) -> dict[str, Any]:
        return {"temperature": self.temperature, "name": self.name}


@case("Labels", "a loss of whole batches, as in `vision/supervised-contrastive-learning`")
def supervised_contrastive() -> Run:
    loss = SupervisedContrastiveLoss(0.05)
    model = net(layers.Dense(6, "relu"), layers.Dense(4, "relu"), loss=loss)
    objects = {"SupervisedContrastiveLoss": SupervisedContrastiveLoss}
    return Run(model, X, CLASSES, trainer={"custom_objects": objects})


# --- Models ----------------------------------------------------------------------------------


def two_outputs(**settings: Any) -> keras.Model:
    inputs = keras.Input((4,), name="features")
    inner = layers.Dense(5, "tanh")(inputs)
    kind = layers.Dense(3, "softmax", name="kind")(inner)
    size = layers.Dense(1, name="size")(inner)
    model = keras.Model(inputs, [kind, size])
    model.compile("adam", **settings)
    return model


TWO_COLUMNS = {"features": X, "label": CLASSES, "size": TARGET}
WHOLE_COLUMNS = {name: values[:WHOLE] for name, values in TWO_COLUMNS.items()}
TWO_LOSSES = {"kind": "sparse_categorical_crossentropy", "size": "mse"}
TWO_LABELS = {"kind": CLASSES[:WHOLE], "size": TARGET[:WHOLE]}
BY_NAME = {"label_col": {"kind": "label", "size": "size"}}


@case("Models", "two outputs, `loss_weights`, metrics for each")
def two_outputs_by_list() -> Run:
    model = two_outputs(
        loss=list(TWO_LOSSES.values()), loss_weights=[1.0, 0.3], metrics=[["accuracy"], ["mae"]]
    )
    trainer = {"label_col": ["label", "size"]}
    y = list(TWO_LABELS.values())
    return Run(model, X[:WHOLE], y, WHOLE_COLUMNS, trainer, validation=True)


@case("Models", "outputs by name, losses and labels as dictionaries")
def two_outputs_by_name() -> Run:
    model = two_outputs(loss=TWO_LOSSES, metrics={"size": ["mae"]})
    return Run(model, X[:WHOLE], TWO_LABELS, WHOLE_COLUMNS, BY_NAME)


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
    outputs = {"kind": layers.Dense(3, "softmax")(inner), "size": layers.Dense(1)(inner)}
    model = keras.Model(inputs, outputs)
    model.compile("adam", TWO_LOSSES)
    return Run(model, X[:WHOLE], TWO_LABELS, WHOLE_COLUMNS, BY_NAME)


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


@keras.saving.register_keras_serializable("like_fit")
class Counter(layers.Layer):
    """Counts its calls in training, as an integer, and notes that there was one."""

    def build(self, shape: Any) -> None:
        self.calls = self.add_weight(
            name="calls", shape=(), dtype="int32", initializer="zeros", trainable=False
        )
        self.called = self.add_weight(
            name="called", shape=(), dtype="bool", initializer="zeros", trainable=False
        )

    def call(self, inputs: Any, training: bool = False) -> Any:
        if training:
            self.calls.assign(self.calls + 1)
            self.called.assign(True)
        return inputs


def of_layers(*inner: Any, validation: bool = False) -> Run:
    return Run(net(*inner, layers.Dense(1)), X, TARGET, validation=validation)


cases(
    "Models",
    {
        # With Adam the bias before a normalization, whose gradient is 0 but for rounding, is noise.
        "batch normalization": lambda: of_layers(
            layers.Dense(5, use_bias=False), layers.BatchNormalization(), validation=True
        ),
        "batch normalization that is frozen, and other frozen layers": lambda: of_layers(
            layers.Dense(5, trainable=False), layers.BatchNormalization(trainable=False)
        ),
        "masks: `Embedding(mask_zero=True)` and recurrent layers": lambda: Run(
            tagger(layers.Embedding(9, 4, mask_zero=True), layers.Bidirectional(layers.GRU(3))),
            *(WORDS, CLASSES),
        ),
        "penalties of weights and activities, losses of layers": lambda: of_layers(
            layers.Dense(5, kernel_regularizer="l2", activity_regularizer="l1"), validation=True
        ),
        "variables of integers and booleans that a layer changes": lambda: of_layers(
            layers.Dense(3), Counter()
        ),
        "a `Lambda` layer, after `keras.config.enable_unsafe_deserialization()`": lambda: of_layers(
            layers.Dense(3), layers.Lambda(lambda x: x * 2.0)
        ),
    },
)

cases(
    "Models",
    {
        "dropout, noise and augmentation with a seed": lambda: of_layers(
            layers.Dense(8, "relu"), layers.Dropout(0.3, seed=3)
        ),
        "dropout, noise and augmentation without a seed": lambda: of_layers(
            layers.GaussianNoise(0.1), layers.Dense(8, "relu"), layers.Dropout(0.3)
        ),
    },
    tolerance=0.0,
)


@case("Models", "constraints: `NonNeg`, `UnitNorm`, `MaxNorm`")
def constraints() -> Run:
    model = net(
        layers.Dense(5, kernel_constraint="non_neg"),
        layers.Dense(4, kernel_constraint="unit_norm"),
        layers.Dense(1, kernel_constraint=keras.constraints.MaxNorm(0.5)),
        optimizer=optimizers.SGD(0.1),
    )
    return Run(model, X, TARGET)


@case("Models", "adapted preprocessing: `Normalization`")
def adapted_normalization() -> Run:
    normalization = layers.Normalization()
    normalization.adapt(X * 3 + 1)
    return Run(net(normalization, layers.Dense(1)), X * 3 + 1, TARGET)


@case("Models", "`mixed_bfloat16`", tolerance=0.0)
def mixed_precision() -> Run:
    policy = keras.dtype_policies.DTypePolicy("mixed_bfloat16")
    inner = [layers.Dense(8, "relu", dtype=policy), layers.Dense(3, "softmax", dtype="float32")]
    return Run(net(*inner, loss="sparse_categorical_crossentropy"), X, CLASSES)


@keras.saving.register_keras_serializable("like_fit")
class Recommender(keras.Model):
    """A subclassed model that nobody has called yet."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.inner = layers.Dense(5, "tanh")
        self.outer = layers.Dense(1)

    def call(self, inputs: Any) -> Any:
        return self.outer(self.inner(inputs))


@case("Models", "a subclassed model that `fit` would build")
def subclassed_model() -> Run:
    model = Recommender()
    model.compile("adam", "mse")
    return Run(model, X, TARGET)


# --- Training steps of one's own ----------------------------------------------------------------


def step_by(model: keras.Model, tape: Any, loss: Any) -> None:
    gradients = tape.gradient(loss, model.trainable_variables)
    model.optimizer.apply(gradients, model.trainable_variables)


class NestedLogs(keras.Model):
    """The first examples of Keras' guide to training steps, written anew: its logs are nested."""

    def train_step(self, data: Any) -> dict[str, Any]:
        import tensorflow as tf

        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(y=y, y_pred=y_pred, sample_weight=sample_weight)
        step_by(self, tape, loss)
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss)
            else:
                metric.update_state(y, y_pred, sample_weight=sample_weight)
        return {metric.name: metric.result() for metric in self.metrics}


@keras.saving.register_keras_serializable("like_fit")
class OwnTrackers(keras.Model):
    """A training step with trackers of its own, and without a number called loss."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.error = metrics.Mean(name="error")
        self.largest = metrics.MeanAbsoluteError(name="off_by")

    @property
    def metrics(self) -> list[Any]:
        """Return the trackers, which are reset at each epoch."""
        return [self.error, self.largest]

    def train_step(self, data: Any) -> dict[str, Any]:
        import tensorflow as tf

        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = ops.mean(ops.square(y[:, None] - y_pred))
        step_by(self, tape, loss)
        self.error.update_state(loss)
        self.largest.update_state(y[:, None], y_pred)
        return {"error": self.error.result(), "off_by": self.largest.result()}


@keras.saving.register_keras_serializable("like_fit")
class WithoutLabels(keras.Model):
    """A training step that gets the inputs alone."""

    def train_step(self, data: Any) -> dict[str, Any]:
        import tensorflow as tf

        with tf.GradientTape() as tape:
            loss = ops.mean(ops.square(data - self(data, training=True)))
        step_by(self, tape, loss)
        return {"error": loss}


def stepping(kind: type[keras.Model], outputs: int = 1, **settings: Any) -> keras.Model:
    inputs = keras.Input((4,))
    model = kind(inputs, layers.Dense(outputs)(layers.Dense(5, "tanh")(inputs)))
    model.compile("adam", **settings)
    return model


#: What `fit`, `train` and the DataFrame need for weights of rows.
WEIGHTED: dict[str, Any] = {
    "train": {"sample_weight_col": "weight"},
    "fit": {"sample_weight": WEIGHTS},
}


def weighted(y: np.ndarray) -> dict[str, np.ndarray]:
    return {"features": X, "label": y, "weight": WEIGHTS}


cases(
    "Training steps",
    {
        "nested logs, as in the first example of Keras' guide": lambda: Run(
            *(stepping(NestedLogs, loss="mse", metrics=["mae"]), X, TARGET),
            trainer={"custom_objects": {"NestedLogs": NestedLogs}},
        ),
        "the same with sample weights": lambda: Run(
            *(stepping(NestedLogs, loss="mse", metrics=["mae"]), X, TARGET, weighted(TARGET)),
            trainer={"custom_objects": {"NestedLogs": NestedLogs}},
            **WEIGHTED,
        ),
        "trackers of your own, no `loss` among the logs": lambda: Run(
            stepping(OwnTrackers), X, TARGET
        ),
        "`data` without labels: `label_col=None`": lambda: Run(
            *(stepping(WithoutLabels, outputs=4), X),
            columns={"features": X},
            trainer={"label_col": None},
        ),
    },
)

# --- Metrics ----------------------------------------------------------------------------------


@keras.saving.register_keras_serializable("like_fit")
class Spread(metrics.Metric):
    """A metric of one's own, whose state adds: the standard deviation of the predictions."""

    def __init__(self, name: str = "spread", **kwargs: Any) -> None:
        super().__init__(name=name, **kwargs)
        for each in ("total", "squares", "count"):
            setattr(self, each, self.add_weight(name=each, shape=(), initializer="zeros"))

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        self.total.assign_add(ops.sum(y_pred))
        self.squares.assign_add(ops.sum(ops.square(y_pred)))
        self.count.assign_add(ops.cast(ops.size(y_pred), "float32"))

    def result(self) -> Any:
        mean = self.total / self.count
        return ops.sqrt(self.squares / self.count - mean * mean)


BY_BATCH = (
    "each batch counts by its rows, where `fit` gives a short last batch the weight of one row"
)


@case("Metrics", "a loss as a metric, losses of single outputs", note=BY_BATCH)
def loss_as_metric() -> Run:
    return Run(regressor("mae", losses.Huber()), X[:WHOLE], TARGET[:WHOLE], validation=True)


@case("Metrics", "a number for each class: `F1Score()`", note="`f1_score_0`, `f1_score_1`, ...")
def vector_of_metrics() -> Run:
    model = classifier(loss="categorical_crossentropy", metrics=[metrics.F1Score(name="f1")])
    return Run(model, X, ONE_HOT, validation=True)


@case("Metrics", "`Recall`, `Precision`, `AUC`")
def ratios_of_counts() -> Run:
    recall, precision = metrics.Recall(0.2, name="recall"), metrics.Precision(0.2, name="precision")
    areas = metrics.AUC(name="auc"), metrics.AUC(curve="PR", name="pr")
    return Run(detector(recall, precision, *areas), X, RARE, validation=True)


cases(
    "Metrics",
    {
        "counts: `TruePositives`, `FalseNegatives`": lambda: Run(
            detector(metrics.TruePositives(0.2, name="tp"), metrics.FalseNegatives(0.2, name="fn")),
            *(X, RARE),
            validation=True,
        ),
        "`weighted_metrics`, with sample weights": lambda: Run(
            classifier(metrics=["accuracy"], weighted_metrics=["accuracy"]),
            *(X, CLASSES, weighted(CLASSES)),
            **WEIGHTED,
            validation=True,
        ),
        "a metric of your own whose state adds": lambda: Run(
            regressor(Spread()), X, TARGET, validation=True
        ),
    },
)

# --- Optimizers -------------------------------------------------------------------------------


def of_optimizer(optimizer: Any, **more: Any) -> Run:
    return Run(regressor(optimizer=optimizer), X, TARGET, **more)


@case("Optimizers", "SGD with Nesterov's momentum", tolerance=0.0)
def nesterov() -> Run:
    return of_optimizer(optimizers.SGD(0.05, momentum=0.9, nesterov=True))


cases(
    "Optimizers",
    {
        "AdamW with weight decay and clipping": lambda: of_optimizer(
            optimizers.AdamW(0.01, weight_decay=0.1, global_clipnorm=0.5)
        ),
        "accumulated gradients (`gradient_accumulation_steps`)": lambda: of_optimizer(
            optimizers.Adam(0.01, gradient_accumulation_steps=3)
        ),
        "a schedule: `ExponentialDecay`, counted by the worker's own steps": lambda: of_optimizer(
            optimizers.SGD(optimizers.schedules.ExponentialDecay(0.05, 4, 0.5, staircase=True))
        ),
        "averaged weights (`use_ema=True`)": lambda: of_optimizer(
            optimizers.SGD(0.1, use_ema=True, ema_momentum=0.9)
        ),
        "averaged weights that overwrite (`ema_overwrite_frequency`)": lambda: of_optimizer(
            optimizers.SGD(0.1, use_ema=True, ema_momentum=0.9, ema_overwrite_frequency=4)
        ),
    },
)

# --- Weights of rows --------------------------------------------------------------------------


@case("Weights of rows", "`class_weight`")
def class_weight() -> Run:
    settings = {"class_weight": {0: 1.0, 1: 2.5, 2: 0.3}}
    return Run(classifier(metrics=["accuracy"]), X, CLASSES, train=settings, fit=settings)


@case("Weights of rows", "sample weights, also in the validation", tolerance=0.0)
def sample_weights() -> Run:
    return Run(regressor("mae"), X, TARGET, weighted(TARGET), **WEIGHTED, validation=True)


# --- Callbacks --------------------------------------------------------------------------------


@case("Callbacks", "`EarlyStopping(restore_best_weights=True)`")
def early_stopping() -> Run:
    def stop() -> list[keras.callbacks.Callback]:
        return [
            keras.callbacks.EarlyStopping("val_loss", min_delta=100.0, restore_best_weights=True)
        ]

    return of_optimizer(optimizers.SGD(0.05), callbacks=stop, validation=True)


@case("Callbacks", "`LearningRateScheduler`: its rate counts from the epoch's first batch")
def learning_rate_scheduler() -> Run:
    def rate(epoch: int, now: float) -> float:
        return now * 0.5 if epoch else now

    scheduler = keras.callbacks.LearningRateScheduler
    return of_optimizer(optimizers.SGD(0.1), callbacks=lambda: [scheduler(rate)])


# --- Columns ----------------------------------------------------------------------------------


@case("Columns", "integers for an input of integers, up to the type's ends")
def large_integers() -> Run:
    words = WORDS.astype("int64") + 2**24  # not exact in float32
    lookup = layers.IntegerLookup(vocabulary=[2**24 + each for each in (3, 5, 8, 1)])
    inner = [lookup, layers.Embedding(5, 3), layers.Flatten(), layers.Dense(1)]
    return Run(net(*inner, inputs=(6,), dtype="int64"), words, TARGET)
