"""Names of losses, metrics and optimizers, refused where they are given, not in a worker.

Keras itself knows which names exist. Importing it takes seconds, so a table is used if Keras has
not been imported yet, as on the command line. A test compares the table with Keras' own registry.
Another version of Keras may know more names: for one that the table lacks it is imported and asked.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterator, Mapping
from importlib import metadata
from typing import Any, Literal, TypeAlias

from distkeras_grid.engine.registry import current_backend
from distkeras_grid.errors import ConfigurationError

Kind: TypeAlias = Literal["optimizer", "loss", "metric"]

#: The version whose names are in the table.
KERAS = "3.15.1"
#: What Keras makes of these depends on the model's output and loss.
SPECIAL_METRICS = frozenset(["accuracy", "acc", "crossentropy", "ce"])
_TABLE: Mapping[Kind, str] = {
    "optimizer": """
        adadelta adafactor adagrad adam adamax adamw ftrl lion lossscaleoptimizer multioptimizer
        muon nadam optimizer optimizermap rmsprop schedulefreeadamw sgd
    """,
    "loss": """
        BCE BinaryCrossentropy BinaryFocalCrossentropy CTC CategoricalCrossentropy
        CategoricalFocalCrossentropy CategoricalHinge Circle CosineSimilarity Dice Hinge Huber KLD
        KLDivergence LogCosh Loss LossFunctionWrapper MAE MAPE MSE MSLE MeanAbsoluteError
        MeanAbsolutePercentageError MeanSquaredError MeanSquaredLogarithmicError Poisson
        SparseCategoricalCrossentropy SquaredHinge Tversky bce binary_crossentropy
        binary_focal_crossentropy categorical_crossentropy categorical_focal_crossentropy
        categorical_hinge circle cosine_similarity ctc dice hinge huber kl_divergence kld log_cosh
        mae mape mean_absolute_error mean_absolute_percentage_error mean_squared_error
        mean_squared_logarithmic_error mse msle poisson sparse_categorical_crossentropy
        squared_hinge tversky
    """,
    "metric": """
        AUC Accuracy BCE BinaryAccuracy BinaryCrossentropy BinaryIoU CategoricalAccuracy
        CategoricalCrossentropy CategoricalHinge ConcordanceCorrelation CosineSimilarity F1Score
        FBetaScore FalseNegatives FalsePositives Hinge IoU KLDivergence LogCoshError MAE MAPE MSE
        MSLE Mean MeanAbsoluteError MeanAbsolutePercentageError MeanIoU MeanMetricWrapper
        MeanSquaredError MeanSquaredLogarithmicError Metric OneHotIoU OneHotMeanIoU
        PearsonCorrelation Poisson Precision PrecisionAtRecall R2Score Recall RecallAtPrecision
        RootMeanSquaredError SensitivityAtSpecificity SparseCategoricalAccuracy
        SparseCategoricalCrossentropy SparseTopKCategoricalAccuracy SpecificityAtSensitivity
        SquaredHinge Sum TopKCategoricalAccuracy TrueNegatives TruePositives acc accuracy auc bce
        binary_accuracy binary_crossentropy binary_io_u categorical_accuracy
        categorical_crossentropy categorical_hinge ce concordance_correlation cosine_similarity
        crossentropy f1_score f_beta_score false_negatives false_positives hinge io_u kl_divergence
        log_cosh_error mae mape mean mean_absolute_error mean_absolute_percentage_error mean_io_u
        mean_metric_wrapper mean_squared_error mean_squared_logarithmic_error metric mse msle
        one_hot_io_u one_hot_mean_io_u pearson_correlation poisson precision precision_at_recall
        r2_score recall recall_at_precision root_mean_squared_error sensitivity_at_specificity
        sparse_categorical_accuracy sparse_categorical_crossentropy
        sparse_top_k_categorical_accuracy specificity_at_sensitivity squared_hinge sum
        top_k_categorical_accuracy true_negatives true_positives
    """,
}
NAMES: Mapping[Kind, frozenset[str]] = {
    kind: frozenset(names.split()) for kind, names in _TABLE.items()
}


def check_names(
    model: Any,
    *,
    optimizer: Any = None,
    loss: Any = None,
    metrics: Any = None,
    custom_objects: Mapping[str, Any] | None = None,
) -> None:
    """Refuse names that Keras does not know.

    Parameters
    ----------
    model : keras.Model
        Its own ``compile`` is checked for arguments that are not given.
    optimizer, loss, metrics : optional
        As in ``keras.Model.compile``. Values that are not strings are not checked.
    custom_objects : mapping of str to object, optional
        Further names.

    Raises
    ------
    ConfigurationError
        If Keras does not know a name. The message has the argument, the name and a similar one.
    EnvironmentMismatchError
        If Keras must be asked, and its backend is not installed.
    """
    # Before the first name is looked up, which may import it.
    imported = "keras" in sys.modules
    compiled, own = _compiled_with(model), custom_objects or {}
    given: Mapping[Kind, Any] = {
        "optimizer": optimizer,
        "loss": compiled.get("loss") if loss is None else loss,
        "metric": compiled.get("metrics") if metrics is None else metrics,
    }
    for kind, argument in given.items():
        for name in _names(argument):
            if name not in own and not _is_known(kind, name, imported):
                near = difflib.get_close_matches(name, NAMES[kind], n=1)
                hint = f" Did you mean {near[0]!r}?" if near else ""
                raise ConfigurationError(
                    f"Keras knows no {kind} of this name.{hint} Received: {name!r}. Give one of "
                    "your own as an object, and name it in custom_objects."
                )


def _is_known(kind: Kind, name: str, imported: bool) -> bool:
    if kind == "metric" and name in SPECIAL_METRICS:
        return True
    if imported:
        return _known_to_keras(kind, name)
    if _in_table(kind, name):
        return True
    return metadata.version("keras") != KERAS and _known_to_keras(kind, name)


def _in_table(kind: Kind, name: str) -> bool:
    """Look a name up without Keras.

    What is registered under a package passes, "package>name": the user's module, which registers
    it, may not have been imported yet.
    """
    # Optimizers are found by any spelling of their class.
    return ">" in name or (name.lower() if kind == "optimizer" else name) in NAMES[kind]


def _known_to_keras(kind: Kind, name: str) -> bool:
    current_backend()  # Tells in words if Keras cannot be imported.
    import keras

    modules = {"optimizer": keras.optimizers, "loss": keras.losses, "metric": keras.metrics}
    try:
        modules[kind].get(name)
    except ValueError:
        return False
    return True


def _compiled_with(model: Any) -> Mapping[str, Any]:
    """Return the arguments of the model's own ``compile``, as far as Keras has them."""
    config = getattr(model, "_compile_config", None)
    told = getattr(config, "config", None)
    return told if isinstance(told, Mapping) else {}


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
