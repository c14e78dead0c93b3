from __future__ import annotations

import io

import pytest
from PIL import Image

from distkeras_grid import plots
from distkeras_grid.errors import ConfigurationError, EmptyDataError
from distkeras_grid.history import History
from distkeras_grid.records import EpochEnded
from tests.records import window_record


def make_history(workers: int = 2, epochs: int = 2, windows: int = 10) -> History:
    """A run in which all workers go in step: one window a second, 32 samples each."""
    history = History()
    version = 0
    for second in range(epochs * windows):
        for worker in range(workers):
            version += 1
            history.add(
                window_record(
                    version,
                    worker=worker,
                    epoch=1 + second // windows,
                    window=second % windows,
                    samples=32,
                    started=1000.0 + second,
                    seconds=0.9,
                    folded_at=1000.95 + second,
                )
            )
        if (second + 1) % windows == 0:
            history.add_epoch(
                EpochEnded((second + 1) // windows, version, 32 * version, 1000.95 + second),
                validation={"val_accuracy": second / 100},
            )
    return history


def test_curves_draw_the_epochs_of_histories_and_given_points():
    runs = {"ADAG": make_history(), "fit": [(1.0, 0.25), (2.0, 0.5)]}
    figure = plots.curves(runs, metric="val_accuracy")
    ours, theirs = figure.axes[0].get_lines()
    assert ours.get_xydata().tolist() == [[pytest.approx(9.95), 0.09], [pytest.approx(19.95), 0.19]]
    assert theirs.get_xydata().tolist() == [[1.0, 0.25], [2.0, 0.5]]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["ADAG", "fit"]
    assert figure.axes[0].get_ylabel() == "validation accuracy"


def test_curves_by_samples_count_the_samples():
    figure = plots.curves({"ADAG": make_history()}, x="samples")
    assert figure.axes[0].get_lines()[0].get_xdata().tolist() == [640.0, 1280.0]
    assert figure.axes[0].get_xlabel() == "samples trained"


def test_simulated_time_is_called_so():
    real, simulated = make_history(), make_history()
    simulated.params["time"] = "simulated"
    figures = [plots.timeline(simulated), plots.curves({"a": simulated})]
    for figure in figures:
        assert figure.axes[0].get_xlabel() == "simulated time since the first batch [s]"
    mixed = plots.curves({"cluster": real, "plan": simulated})
    assert mixed.axes[0].get_xlabel() == "time since the first batch [s]"
    assert [line.get_label() for line in mixed.axes[0].lines] == [
        "cluster",
        "plan (simulated time)",
    ]


def test_no_two_of_a_few_runs_look_alike():
    figure = plots.curves({str(i): [(0.0, i), (1.0, i)] for i in range(7)})
    looks = {(line.get_color(), line.get_marker()) for line in figure.axes[0].get_lines()}
    assert len({color for color, _ in looks}) == len({marker for _, marker in looks}) == 7


def test_curves_refuse_what_they_cannot_draw():
    with pytest.raises(ConfigurationError, match="Received: 'hours'"):
        plots.curves({"a": [(0.0, 1.0)]}, x="hours")
    with pytest.raises(ConfigurationError, match="'auc'"):
        plots.curves({"a": make_history()}, metric="auc")
    with pytest.raises(EmptyDataError, match="no runs"):
        plots.curves({})
    with pytest.raises(EmptyDataError, match="no points of 'a'"):
        plots.curves({"a": []})


def test_a_history_without_windows_is_an_error():
    with pytest.raises(EmptyDataError, match="no windows"):
        plots.timeline(History())


def test_the_timeline_has_a_bar_a_window():
    figure = plots.timeline(make_history(workers=3))
    bars = figure.axes[0].collections
    assert [len(collection.get_paths()) for collection in bars] == [20, 20, 20]
    first = bars[0].get_paths()[1].vertices[:, 0]
    assert (first.min(), first.max()) == (pytest.approx(1.0), pytest.approx(1.9))
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == [
        "worker 0",
        "worker 1",
        "worker 2",
    ]


def test_a_figure_shows_itself_in_a_notebook():
    png = plots.timeline(make_history())._repr_png_()
    assert Image.open(io.BytesIO(png)).size == (1200, 800)
