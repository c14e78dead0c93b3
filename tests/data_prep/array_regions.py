"""Regions of images: over an array, counting how often each part is decoded, and of any size."""

from __future__ import annotations

from collections import Counter

import numpy as np


class ArrayRegions:
    def __init__(self, pixels, grain=(64, 64)):
        self.pixels, self.shape, self.dtype, self.grain = pixels, pixels.shape, pixels.dtype, grain
        self.decoded = Counter()

    def read(self, left, top, right, bottom):
        for row in range(top // self.grain[0], -(-bottom // self.grain[0])):
            for column in range(left // self.grain[1], -(-right // self.grain[1])):
                self.decoded[row, column] += 1
        return self.pixels[top:bottom, left:right].copy()

    def close(self):
        pass


class Noise:
    """An image of any height that takes no memory: `shape` is height, width and channels."""

    dtype, grain = np.dtype(np.uint8), (256, 256)

    def __init__(self, shape):
        self.shape = shape

    def read(self, left, top, right, bottom):
        return np.full((bottom - top, right - left, self.shape[2]), top % 251, np.uint8)

    def close(self):
        pass
