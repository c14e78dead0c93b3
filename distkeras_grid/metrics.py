"""Accuracy and confusion matrix on arrays, by one rule for what class a prediction names.

============================================  ================================================
predictions                                   class
============================================  ================================================
``(n, k)``, k > 1                             the first largest number of the row (argmax)
``(n, 1)``                                    1 above 0.5, else 0, as Keras' binary accuracy
``(n,)`` whole numbers, whatever their dtype  the number itself
``(n,)`` other numbers                        1 above 0.5, else 0
============================================  ================================================

A prediction with NaN names no class (`NO_CLASS`) and is never right. Labels are whole numbers
``(n,)`` or ``(n, 1)``, or one-hot rows ``(n, k)``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from distkeras_grid.errors import ConfigurationError, DataError, EmptyDataError, LabelError

THRESHOLD = 0.5
NO_CLASS = -1

Classes = npt.NDArray[np.int64]


def predicted_classes(predictions: npt.ArrayLike) -> Classes:
    """Return the class that each prediction names.

    `predictions`: shape ``(n,)`` or ``(n, k)``, numbers; see the table of the module.
    Shape of the result: (n,).
    """
    values = np.asarray(predictions)
    if values.dtype.kind not in "biuf" or values.ndim not in (1, 2) or values.shape[1:] == (0,):
        raise DataError(
            "predictions must be numbers of shape (n,) or (n, k). "
            f"Received: {values.dtype} of shape {values.shape}."
        )
    if values.ndim == 1:
        whole = _is_whole(values)
        named = np.where(whole, np.where(whole, values, 0), values > THRESHOLD)
        missing = np.isnan(values)
    elif values.shape[1] == 1:
        named, missing = values[:, 0] > THRESHOLD, np.isnan(values[:, 0])
    else:
        named, missing = _first_largest(values), np.isnan(values).any(axis=1)
    return np.where(missing, NO_CLASS, named).astype(np.int64)


def true_classes(labels: npt.ArrayLike) -> Classes:
    """Return the classes that labels name.

    `labels`: whole numbers of shape ``(n,)`` or ``(n, 1)``, or one-hot rows of shape ``(n, k)``.
    Shape of the result: (n,).
    """
    values = np.asarray(labels)
    if values.dtype.kind not in "biuf":
        raise LabelError(
            f"labels must be numbers. Received: {values.dtype}. Index their names first."
        )
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.ndim == 1:
        return _whole_labels(values)
    if values.ndim != 2:
        raise LabelError(f"labels must have shape (n,) or (n, k). Received: {values.shape}.")
    one_hot = ((values == 0) | (values == 1)).all(axis=1) & (values.sum(axis=1) == 1)
    if not one_hot.all():
        wrong = values[~one_hot][0]
        raise LabelError(f"{(~one_hot).sum()} rows of labels are not one-hot; the first is {wrong}")
    return _first_largest(values)


def accuracy(labels: npt.ArrayLike, predictions: npt.ArrayLike) -> float:
    """Return the share of predictions that name the label's class."""
    true, predicted = _pairs(labels, predictions)
    return float((true == predicted).mean())


def confusion_matrix(
    labels: npt.ArrayLike, predictions: npt.ArrayLike, classes: int | None = None
) -> npt.NDArray[np.int64]:
    """Count how often each class was taken for each.

    Shape of the result: (classes, classes).
    """
    true, predicted = _pairs(labels, predictions)
    pairs, counts = np.unique(np.stack([true, predicted], axis=1), axis=0, return_counts=True)
    cells = [(int(t), int(p), int(n)) for (t, p), n in zip(pairs, counts, strict=True)]
    return confusion_from_counts(cells, classes)


def confusion_from_counts(
    counts: Sequence[tuple[int, int, int]], classes: int | None = None
) -> npt.NDArray[np.int64]:
    """Build a confusion matrix from counted pairs.

    Shape of the result: (classes, classes).
    """
    if classes is not None and classes < 1:
        raise ConfigurationError(f"classes must be at least 1. Received: {classes}.")
    lost = sum(n for _, predicted, n in counts if predicted == NO_CLASS)
    if lost:
        raise DataError(
            f"{lost} predictions hold NaN and name no class; the model's training has diverged"
        )
    named = [number for true, predicted, _ in counts for number in (true, predicted)]
    size = classes if classes is not None else max(named, default=0) + 1
    outside = sorted({number for number in named if not 0 <= number < size})
    if outside:
        raise LabelError(f"classes must lie in 0..{size - 1}. Received: {outside[:5]}.")
    matrix = np.zeros((size, size), np.int64)
    for true, predicted, n in counts:
        matrix[true, predicted] += n
    return matrix


def _is_whole(values: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    whole: npt.NDArray[np.bool_] = np.isfinite(values) & (values == np.floor(values))
    return whole


def _first_largest(values: npt.NDArray[Any]) -> Classes:
    largest: Classes = values.argmax(axis=1).astype(np.int64)
    return largest


def _whole_labels(values: npt.NDArray[Any]) -> Classes:
    whole = _is_whole(values)
    if not whole.all():
        raise LabelError(
            f"{(~whole).sum()} labels are not whole numbers; the first is {values[~whole][0]}"
        )
    return values.astype(np.int64)


def _pairs(labels: npt.ArrayLike, predictions: npt.ArrayLike) -> tuple[Classes, Classes]:
    true, predicted = true_classes(labels), predicted_classes(predictions)
    if len(true) != len(predicted):
        raise DataError(f"{len(true)} labels came with {len(predicted)} predictions")
    if not len(true):
        raise EmptyDataError("there is nothing to measure: no labels and no predictions")
    return true, predicted
