from __future__ import annotations

import pytest

from distkeras_grid.errors import ConfigurationError, DataError, LabelError
from distkeras_grid.metrics import NO_CLASS, confusion_from_counts


def test_the_confusion_matrix_counts_labels_by_row_and_predictions_by_column():
    counts = [(0, 0, 1), (0, 1, 2), (1, 1, 1), (2, 0, 3)]
    assert confusion_from_counts(counts).tolist() == [[1, 2, 0], [0, 1, 0], [3, 0, 0]]
    assert confusion_from_counts(counts, classes=4).shape == (4, 4)


def test_the_confusion_matrix_refuses_what_it_cannot_place():
    with pytest.raises(LabelError, match=r"0\.\.1. Received: \[2\]"):
        confusion_from_counts([(0, 2, 1), (1, 1, 1)], classes=2)
    with pytest.raises(LabelError, match=r"Received: \[-2\]"):
        confusion_from_counts([(-2, 0, 1)])
    with pytest.raises(DataError, match="1 predictions hold NaN"):
        confusion_from_counts([(0, NO_CLASS, 1)])
    with pytest.raises(ConfigurationError, match=r"at least 1\. Received: 0"):
        confusion_from_counts([], classes=0)
