"""The binary files of CIFAR-10: records of a label and 32x32 pixels, one plane for each colour.

Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009;
https://www.cs.toronto.edu/~kriz/cifar.html.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from distkeras_grid.errors import DataError

SIDE, CHANNELS = 32, 3
RECORD = 1 + CHANNELS * SIDE * SIDE
CLASSES = (
    "airplane",
    "automobile",
    "bird",
    "cat",
    "deer",
    "dog",
    "frog",
    "horse",
    "ship",
    "truck",
)


def read_cifar(content: bytes, name: str) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Return the images and labels of one file.

    Shape of the result: (n, 32, 32, 3).
    Shape of the result: (n,).

    Examples
    --------
    >>> images, labels = read_cifar(bytes([3]) + bytes(3072), "data_batch_1.bin")
    >>> images.shape, labels.tolist()
    ((1, 32, 32, 3), [3])
    """
    if not content or len(content) % RECORD:
        raise DataError(
            f"{name} has {len(content):,} bytes, and records of CIFAR-10 have {RECORD:,}. Get the "
            "file again (cifar-10-binary.tar.gz)."
        )
    records = np.frombuffer(content, np.uint8).reshape(-1, RECORD)
    labels = records[:, 0]
    if labels.max() >= len(CLASSES):
        at = int((labels >= len(CLASSES)).argmax())
        raise DataError(
            f"{name}: record {at} has the label {labels[at]}, and CIFAR-10 has 0 to 9. Get the "
            "file again (files of CIFAR-100 have another form)."
        )
    planes = records[:, 1:].reshape(-1, CHANNELS, SIDE, SIDE)
    return planes.transpose(0, 2, 3, 1), labels
