"""Regions of an image over an array, which count how often each part is decoded."""

from __future__ import annotations

from collections import Counter


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
