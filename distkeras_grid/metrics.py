"""The rule for what class a prediction names, and the confusion matrix of counted pairs.

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

import numpy as np
import numpy.typing as npt

from distkeras_grid.errors import ConfigurationError, DataError, LabelError

THRESHOLD = 0.5
NO_CLASS = -1


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
