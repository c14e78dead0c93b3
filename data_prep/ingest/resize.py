"""Pixels as they were read, converted to one size and one number of channels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_prep.images.plane_selection import as_channels
from distkeras_grid.errors import ImageError


@dataclass(frozen=True)
class TargetSize:
    """Size and channels that every image is converted to."""

    height: int  # height and width: Size in pixels; an image of another shape is stretched
    width: int
    channels: int  # 1: gray, 3: red, green, blue

    @property
    def shape(self) -> tuple[int, int, int]:
        """Height, width and channels."""
        return self.height, self.width, self.channels

    def apply(self, images: NDArray[Any], name: str) -> NDArray[np.uint8]:
        """Return images converted to this look.

        They are converted to gray before they are resized. Where an image shrinks, areas are
        averaged; where it grows, cubic interpolation is used.

        Shape of the result: (n, *self.shape).

        Examples
        --------
        >>> images = np.full((5, 4, 6, 3), 7, np.uint8)
        >>> TargetSize(2, 3, 1).apply(images, "a.png").shape
        (5, 2, 3, 1)
        """
        if images.dtype != np.uint8:
            raise ImageError(f"{name} has 16 bits a channel. Save it with 8 bits.")
        if images.shape[1:] == self.shape:
            return np.ascontiguousarray(images)
        return np.stack([self._one(image) for image in images])

    def _one(self, image: NDArray[Any]) -> NDArray[np.uint8]:
        import cv2

        image = as_channels(image, self.channels)
        height, width = image.shape[:2]
        if (height, width) != (self.height, self.width):
            shrinks = height * width > self.height * self.width
            how = cv2.INTER_AREA if shrinks else cv2.INTER_CUBIC
            image = cv2.resize(
                np.ascontiguousarray(image), (self.width, self.height), None, 0, 0, how
            )
        return image.reshape(self.shape)
