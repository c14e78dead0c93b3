from __future__ import annotations

import numpy as np
import pytest

from distkeras_grid.errors import ConfigurationError, DataError, EmptyDataError, LabelError
from distkeras_grid.metrics import (
    NO_CLASS,
    accuracy,
    confusion_from_counts,
    confusion_matrix,
    predicted_classes,
    true_classes,
)


@pytest.mark.parametrize(
    ("predictions", "classes"),
    [
        ([[0.1, 0.9], [0.9, 0.1]], [1, 0]),
        ([[0.5, 0.5], [0.2, 0.2]], [0, 0]),  # the first of equals
        ([[0.5], [0.51], [2.0]], [0, 1, 1]),
        ([3, 0, 1], [3, 0, 1]),
        ([3.0, 0.0], [3, 0]),
        ([0.4, 0.6, 1.0], [0, 1, 1]),
        (np.array([True, False]), [1, 0]),
        ([[np.nan, 1.0], [0.0, 1.0]], [NO_CLASS, 1]),
        ([[np.nan], [1.0]], [NO_CLASS, 1]),
        ([np.nan, 1.0], [NO_CLASS, 1]),
        (np.array([[2, 1]], dtype=np.uint8), [0]),
        ([], []),
        (np.zeros((0, 3)), []),
    ],
)
def test_the_class_a_prediction_names(predictions, classes):
    named = predicted_classes(predictions)
    assert named.dtype == np.int64
    assert named.tolist() == classes


@pytest.mark.parametrize("shape", [(), (2, 2, 2), (3, 0)])
def test_predictions_of_other_shapes_are_refused(shape):
    with pytest.raises(DataError, match=r"numbers of shape \(n,\) or \(n, k\)"):
        predicted_classes(np.zeros(shape))


def test_predictions_that_are_no_numbers_are_refused():
    with pytest.raises(DataError, match="must be numbers"):
        predicted_classes(["cat"])


@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        ([2, 0], [2, 0]),
        ([[2], [0]], [2, 0]),
        ([2.0, 0.0], [2, 0]),
        ([[0, 0, 1], [1, 0, 0]], [2, 0]),
        ([[0.0, 1.0]], [1]),
        ([], []),
    ],
)
def test_the_class_a_label_names(labels, classes):
    assert true_classes(labels).tolist() == classes


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([0.5, 1.0], "1 labels are not whole numbers; the first is 0.5"),
        ([np.nan], "not whole numbers"),
        ([[0, 1], [1, 1]], "1 rows of labels are not one-hot"),
        ([[0.3, 0.7]], "not one-hot"),
        (["cat"], "Index their names"),
        (np.zeros((2, 2, 2)), r"Received: \(2, 2, 2\)"),
    ],
)
def test_labels_that_name_no_class_are_refused(labels, message):
    with pytest.raises(LabelError, match=message):
        true_classes(labels)


def test_accuracy_is_the_share_of_hits_and_nan_never_hits():
    assert accuracy([0, 1, 1, 0], [[0.9, 0.1], [0.2, 0.8], [0.6, 0.4], [np.nan, 0.0]]) == 0.5


def test_accuracy_needs_as_many_labels_as_predictions_and_some():
    with pytest.raises(DataError, match="2 labels came with 1 predictions"):
        accuracy([0, 1], [0])
    with pytest.raises(EmptyDataError):
        accuracy([], [])


def test_the_confusion_matrix_counts_labels_by_row_and_predictions_by_column():
    matrix = confusion_matrix([0, 0, 1, 2], [0, 1, 1, 0], classes=3)
    assert matrix.tolist() == [[1, 1, 0], [0, 1, 0], [1, 0, 0]]
    assert matrix.trace() / matrix.sum() == accuracy([0, 0, 1, 2], [0, 1, 1, 0])


def test_the_confusion_matrix_grows_to_the_largest_class():
    assert confusion_matrix([0], [2]).shape == (3, 3)


def test_the_confusion_matrix_refuses_what_it_cannot_place():
    with pytest.raises(LabelError, match=r"0\.\.1. Received: \[2\]"):
        confusion_matrix([0, 1], [2, 1], classes=2)
    with pytest.raises(LabelError, match=r"Received: \[-1\]"):
        confusion_matrix([-1], [0])
    with pytest.raises(DataError, match="1 predictions hold NaN"):
        confusion_matrix([0], [[np.nan, 0.0]])
    with pytest.raises(ConfigurationError, match=r"at least 1\. Received: 0"):
        confusion_from_counts([], classes=0)
