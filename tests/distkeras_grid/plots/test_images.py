import numpy as np
import pytest

from distkeras_grid import plots
from distkeras_grid.errors import ConfigurationError, EmptyDataError

GRAY = np.arange(12, dtype=np.uint8).reshape(3, 4)


@pytest.mark.parametrize("count", [1, 24])
def test_a_contact_sheet_shows_every_image_with_its_title(count):
    figure = plots.contact_sheet([GRAY] * count, [f"tile {i}" for i in range(count)], "Tiles")
    shown = [axes for axes in figure.axes if axes.get_images()]
    assert [axes.get_title() for axes in shown] == [f"tile {i}" for i in range(count)]
    figure.draw_without_rendering()


@pytest.mark.parametrize(
    "image",
    [
        GRAY,
        GRAY[:, :, None],
        np.stack([GRAY] * 3, axis=2),
        GRAY.astype(np.uint16),
        GRAY.astype(np.float32) / 12,
    ],
)
def test_gray_and_color_images_are_shown_as_they_are(image):
    figure = plots.contact_sheet([image])
    shown = figure.axes[0].get_images()[0].get_array()
    assert np.array_equal(np.squeeze(shown), np.squeeze(image))


def test_a_contact_sheet_refuses_what_it_cannot_show():
    with pytest.raises(EmptyDataError, match="no images"):
        plots.contact_sheet([])
    with pytest.raises(ConfigurationError, match="2 images need as many titles"):
        plots.contact_sheet([GRAY, GRAY], ["a"])
    with pytest.raises(ConfigurationError, match=r"Received: \(3, 4, 2\)"):
        plots.contact_sheet([np.zeros((3, 4, 2))])
