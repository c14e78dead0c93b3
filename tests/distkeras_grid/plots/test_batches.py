from __future__ import annotations

import pytest

from distkeras_grid import plots
from distkeras_grid.errors import EmptyDataError

SIDES = {
    "fit": [(128, 3.0, 2.0, 5.0), (32, 9.0, 8.0, 9.5)],
    "ADAG, 2 workers": [(32, 5.0, 5.0, 5.0)],
}


def test_each_side_is_a_line_with_bars_from_lowest_to_highest():
    figure = plots.by_batch(SIDES, "time [s]", "Time")
    axes = figure.axes[0]
    fit = axes.containers[0]
    assert fit.lines[0].get_ydata().tolist() == [9.0, 3.0]
    bars = [segment[:, 1].tolist() for segment in fit.lines[2][0].get_segments()]
    assert bars == [[8.0, 9.5], [2.0, 5.0]]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["32", "128"]
    assert (axes.get_ylabel(), axes.get_title()) == ("time [s]", "Time")
    assert [text.get_text() for text in figure.legends[0].get_texts()] == list(SIDES)
    figure.draw_without_rendering()


def test_sides_of_one_batch_stand_side_by_side():
    axes = plots.by_batch(SIDES, "time [s]", "Time").axes[0]
    first, second = (container.lines[0].get_xdata()[0] for container in axes.containers)
    assert first < 32 < second
    assert second / first < 1.1


def test_nothing_to_draw():
    with pytest.raises(EmptyDataError, match="no sides"):
        plots.by_batch({}, "", "")
    with pytest.raises(EmptyDataError, match="no points of 'fit'"):
        plots.by_batch({"fit": []}, "", "")
