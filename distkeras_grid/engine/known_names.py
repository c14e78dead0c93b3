"""Names of losses, metrics and optimizers that Keras knows, to look up without importing it.

A test holds the table against Keras' own registry. Another version of Keras may know more: then
nothing is refused here.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from importlib import metadata
from typing import Any

from distkeras_grid.errors import ConfigurationError

# The version whose names these are.
KERAS = "3.15.1"

LOSSES = frozenset(
    [
        "BCE",
        "BinaryCrossentropy",
        "BinaryFocalCrossentropy",
        "CTC",
        "CategoricalCrossentropy",
        "CategoricalFocalCrossentropy",
        "CategoricalHinge",
        "Circle",
        "CosineSimilarity",
        "Dice",
        "Hinge",
        "Huber",
        "KLD",
        "KLDivergence",
        "LogCosh",
        "Loss",
        "LossFunctionWrapper",
        "MAE",
        "MAPE",
        "MSE",
        "MSLE",
        "MeanAbsoluteError",
        "MeanAbsolutePercentageError",
        "MeanSquaredError",
        "MeanSquaredLogarithmicError",
        "Poisson",
        "SparseCategoricalCrossentropy",
        "SquaredHinge",
        "Tversky",
        "bce",
        "binary_crossentropy",
        "binary_focal_crossentropy",
        "categorical_crossentropy",
        "categorical_focal_crossentropy",
        "categorical_hinge",
        "circle",
        "cosine_similarity",
        "ctc",
        "dice",
        "hinge",
        "huber",
        "kl_divergence",
        "kld",
        "log_cosh",
        "mae",
        "mape",
        "mean_absolute_error",
        "mean_absolute_percentage_error",
        "mean_squared_error",
        "mean_squared_logarithmic_error",
        "mse",
        "msle",
        "poisson",
        "sparse_categorical_crossentropy",
        "squared_hinge",
        "tversky",
    ]
)
METRICS = frozenset(
    [
        "AUC",
        "Accuracy",
        "BCE",
        "BinaryAccuracy",
        "BinaryCrossentropy",
        "BinaryIoU",
        "CategoricalAccuracy",
        "CategoricalCrossentropy",
        "CategoricalHinge",
        "ConcordanceCorrelation",
        "CosineSimilarity",
        "F1Score",
        "FBetaScore",
        "FalseNegatives",
        "FalsePositives",
        "Hinge",
        "IoU",
        "KLDivergence",
        "LogCoshError",
        "MAE",
        "MAPE",
        "MSE",
        "MSLE",
        "Mean",
        "MeanAbsoluteError",
        "MeanAbsolutePercentageError",
        "MeanIoU",
        "MeanMetricWrapper",
        "MeanSquaredError",
        "MeanSquaredLogarithmicError",
        "Metric",
        "OneHotIoU",
        "OneHotMeanIoU",
        "PearsonCorrelation",
        "Poisson",
        "Precision",
        "PrecisionAtRecall",
        "R2Score",
        "Recall",
        "RecallAtPrecision",
        "RootMeanSquaredError",
        "SensitivityAtSpecificity",
        "SparseCategoricalAccuracy",
        "SparseCategoricalCrossentropy",
        "SparseTopKCategoricalAccuracy",
        "SpecificityAtSensitivity",
        "SquaredHinge",
        "Sum",
        "TopKCategoricalAccuracy",
        "TrueNegatives",
        "TruePositives",
        "acc",
        "accuracy",
        "auc",
        "bce",
        "binary_accuracy",
        "binary_crossentropy",
        "binary_io_u",
        "categorical_accuracy",
        "categorical_crossentropy",
        "categorical_hinge",
        "ce",
        "concordance_correlation",
        "cosine_similarity",
        "crossentropy",
        "f1_score",
        "f_beta_score",
        "false_negatives",
        "false_positives",
        "hinge",
        "io_u",
        "kl_divergence",
        "log_cosh_error",
        "mae",
        "mape",
        "mean",
        "mean_absolute_error",
        "mean_absolute_percentage_error",
        "mean_io_u",
        "mean_metric_wrapper",
        "mean_squared_error",
        "mean_squared_logarithmic_error",
        "metric",
        "mse",
        "msle",
        "one_hot_io_u",
        "one_hot_mean_io_u",
        "pearson_correlation",
        "poisson",
        "precision",
        "precision_at_recall",
        "r2_score",
        "recall",
        "recall_at_precision",
        "root_mean_squared_error",
        "sensitivity_at_specificity",
        "sparse_categorical_accuracy",
        "sparse_categorical_crossentropy",
        "sparse_top_k_categorical_accuracy",
        "specificity_at_sensitivity",
        "squared_hinge",
        "sum",
        "top_k_categorical_accuracy",
        "true_negatives",
        "true_positives",
    ]
)
OPTIMIZERS = frozenset(
    [
        "adadelta",
        "adafactor",
        "adagrad",
        "adam",
        "adamax",
        "adamw",
        "ftrl",
        "lion",
        "lossscaleoptimizer",
        "multioptimizer",
        "muon",
        "nadam",
        "optimizer",
        "optimizermap",
        "rmsprop",
        "schedulefreeadamw",
        "sgd",
    ]
)


def refuse_unknown(*, optimizer: Any = None, loss: Any = None, metrics: Any = None) -> None:
    """Refuse names that Keras does not know, without importing it.

    Parameters
    ----------
    optimizer, loss, metrics : optional
        As in ``keras.Model.compile``; what is no text, and what is registered under a package
        (``package>name``), is taken as it is.

    Raises
    ------
    ConfigurationError
        Names the argument, what was given and what is near.
    """
    if metadata.version("keras") != KERAS:
        return
    for kind, known, given in (
        ("optimizer", OPTIMIZERS, optimizer),
        ("loss", LOSSES, loss),
        ("metric", METRICS, metrics),
    ):
        for name in _names(given):
            # Optimizers are found by any spelling of their class.
            if name not in known and name.lower() not in OPTIMIZERS & known and ">" not in name:
                near = difflib.get_close_matches(name, known, n=1)
                hint = f" Did you mean {near[0]!r}?" if near else ""
                raise ConfigurationError(
                    f"Keras knows no {kind} of this name.{hint} Received: {name!r}."
                )


def _names(given: Any) -> Iterator[str]:
    """Yield the texts in an argument of ``compile``, which may be a list or a dict of them."""
    if isinstance(given, str):
        yield given
    elif isinstance(given, Mapping):
        # The description of an object, not names by outputs.
        if "class_name" not in given:
            for item in given.values():
                yield from _names(item)
    elif isinstance(given, list | tuple):
        for item in given:
            yield from _names(item)
