from __future__ import annotations

import numpy as np
import pytest

from distkeras_grid import plots
from distkeras_grid.errors import ConfigurationError, EmptyDataError

GRAY = np.arange(12, dtype=np.uint8).reshape(3, 4)


def test_the_confusion_matrix_shows_shares_of_each_label():
    figure = plots.confusion_matrix([[3, 1], [0, 0]], ["granite", "slate"])
    axes = figure.axes[0]
    assert axes.get_images()[0].get_array().tolist() == [[75.0, 25.0], [0.0, 0.0]]
    assert [text.get_text() for text in axes.texts] == ["3\n75%", "1\n25%", "0\n0%", "0\n0%"]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["granite", "slate"]
    assert "3 of 4 right (75.0%)" in axes.get_title()


def test_many_classes_leave_out_what_could_not_be_read():
    axes = plots.confusion_matrix(np.eye(50, dtype=int)).axes[0]
    assert len(axes.texts) == 0
    assert len(axes.get_xticks()) < 50


def test_a_confusion_matrix_of_nothing_divides_by_nothing():
    assert plots.confusion_matrix([[0]]).axes[0].get_title() == "Confusion matrix"


@pytest.mark.parametrize(
    ("matrix", "classes", "message"),
    [
        ([[1, 2, 3], [4, 5, 6]], None, r"Received: \(2, 3\)"),
        ([1, 2], None, r"Received: \(2,\)"),
        (np.zeros((0, 0)), None, r"Received: \(0, 0\)"),
        ([[1, 2], [3, 4]], ["granite"], "2 names"),
    ],
)
def test_what_is_no_confusion_matrix_is_refused(matrix, classes, message):
    with pytest.raises(ConfigurationError, match=message):
        plots.confusion_matrix(matrix, classes)


@pytest.mark.parametrize("count", [1, 2, 5, 24])
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
