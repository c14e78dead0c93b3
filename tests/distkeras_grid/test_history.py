from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

from distkeras_grid.errors import ConfigurationError, DataError
from distkeras_grid.history import History
from distkeras_grid.records import (
    EpochEnded,
    LocalRecord,
    LocalSet,
    WindowRecord,
    WorkerRecord,
)
from tests.records import window_record


def window(version: int, **changes: Any) -> WindowRecord:
    terms = {"worker": version % 2, "loss": 1.0, "metrics": {"accuracy": 0.5}, "learning_rate": 0.1}
    terms |= {"started": 100.0 + version, "folded_at": 101.0 + version}
    return window_record(version, **{**terms, **changes})


def epoch(number: int, version: int, at: float) -> EpochEnded:
    return EpochEnded(number, version, 10 * version, at)


@pytest.fixture
def history() -> History:
    """Two epochs of two windows; a fifth window came after the second."""
    history = History({"trainer": "ADAG", "num_epoch": 2})
    for status, rows in (("joined", None), ("ready", 10)):
        history.add(WorkerRecord(0, 3, status, rows))
    history.add(window(1, loss=1.0, samples=30, metrics={"accuracy": 0.0}))
    history.add(window(2, loss=2.0, samples=10, metrics={"accuracy": 1.0}))
    history.add_epoch(epoch(1, 2, 104.0), validation={"val_loss": 1.5})
    history.add(window(3, epoch=1, loss=0.5))
    history.add(window(4, epoch=2, loss=0.7))
    history.add(window(5, epoch=2, loss=9.0))
    history.add_epoch(epoch(2, 4, 106.0), validation={"val_loss": 1.2})
    return history


def test_local_sets_are_a_table_and_survive_being_written(history):
    for worker in (0, 1):
        local = LocalSet(
            train=60,
            test=worker * 30,
            digest=f"{worker:016x}",
            read_seconds=0.5,
            bytes_read={"http://a": 7, "/b": 3},
            failures={"http://c": 2},
            metrics={"loss": 0.25, "accuracy": 0.75} if worker else {},
        )
        history.add(LocalRecord(worker, 3, 1, worker == 1, local))
    frame = history.local_tests()
    assert frame[["worker", "iteration", "folded", "train", "test"]].values.tolist() == [
        [0, 1, False, 60, 0],
        [1, 1, True, 60, 30],
    ]
    assert frame.bytes_read.tolist() == [10, 10]
    assert frame.failures.tolist() == [2, 2]
    assert np.isnan(frame.accuracy[0])
    assert frame.accuracy[1] == 0.75
    again = History.from_lines(history.lines())
    assert again.local_sets == history.local_sets
    assert len(History().local_tests()) == 0


def test_an_epoch_weighs_the_windows_folded_in_it_by_their_samples(history):
    first, second = history.epoch_records
    assert first.loss == pytest.approx((1.0 * 30 + 2.0 * 10) / 40)
    assert first.metrics == pytest.approx({"accuracy": 0.25})
    # The window of the next pass that was folded in time counts, the late one does not.
    assert second.loss == pytest.approx(0.6)


def test_epoch_seconds_run_from_the_first_batch_and_then_from_epoch_to_epoch(history):
    assert [record.seconds for record in history.epoch_records] == [3.0, 2.0]


def test_the_history_has_the_shape_of_keras(history):
    assert history.epoch == [0, 1]
    assert list(history.history) == ["loss", "accuracy", "val_loss", "learning_rate"]
    assert history.history["val_loss"] == [1.5, 1.2]


def test_totals_are_sums_over_the_windows(history):
    assert history.samples == 70
    assert history.num_updates == 5
    assert history.training_seconds() == 106.0 - 101.0


def test_the_time_between_two_executions_of_a_run_is_no_training():
    history = History({"resumed": [{"version": 2, "samples": 20}]})
    for version in (1, 2):
        history.add(window(version))
    # Somebody has resumed it an hour later, within the first epoch.
    for version in (3, 4):
        late = 3600.0 + version
        history.add(window(version, started=100.0 + late, folded_at=101.0 + late))
    assert history.training_seconds() == (103.0 - 101.0) + (3705.0 - 3703.0)
    assert history.add_epoch(epoch(1, 4, 3705.0)).seconds == history.training_seconds()


def test_an_empty_history_has_zeros_and_typed_empty_frames():
    empty = History()
    assert (empty.samples, empty.num_updates, empty.training_seconds()) == (0, 0, 0.0)
    assert empty.history == {}
    assert empty.to_pandas().dtypes["staleness"] == "int64"
    assert empty.epochs().empty


def test_frames_have_a_row_a_window_or_an_epoch_and_a_column_a_metric(history):
    frame = history.to_pandas()
    assert len(frame) == 5
    assert list(frame.columns[6:9]) == ["loss", "accuracy", "started"]
    assert frame["accuracy"].tolist() == [0.0, 1.0, 0.5, 0.5, 0.5]
    assert history.epochs()[["epoch", "val_loss"]].values.tolist() == [[1, 1.5], [2, 1.2]]


def test_a_metric_named_as_a_field_does_not_replace_it():
    history = History()
    history.add(window(1, metrics={"samples": 0.5}))
    frame = history.to_pandas()
    assert frame["samples"].tolist() == [10]
    assert frame["metric_samples"].tolist() == [0.5]


def test_a_metric_that_a_window_lacks_is_missing_in_the_frame_and_not_averaged():
    history = History()
    history.add(window(1, metrics={}))
    history.add(window(2, metrics={"accuracy": 0.5}))
    assert np.isnan(history.to_pandas()["accuracy"][0])
    assert history.add_epoch(epoch(1, 2, 103.0)).metrics == {"accuracy": 0.5}


def test_an_epoch_has_the_rate_with_which_its_last_window_was_trained():
    history = History()
    for version, rate in enumerate((0.05, 0.025, None), start=1):
        history.add(window(version, learning_rate=rate))
    history.add_epoch(epoch(1, 2, 104.0))
    history.add_epoch(epoch(2, 3, 105.0))
    assert [record.learning_rate for record in history.records] == [0.05, 0.025, None]
    assert [record.learning_rate for record in history.epoch_records] == [0.025, None]
    assert np.isnan(history.to_pandas()["learning_rate"][2])


def test_an_epoch_has_results_of_its_metrics_and_else_the_last_values_of_the_workers():
    history = History()
    for version, (worker, loss) in enumerate(((0, 8.0), (1, 3.0), (0, 2.0)), start=1):
        metrics = {"raw": loss, "recall": 0.0}
        history.add(window(version, worker=worker, loss=loss, metrics=metrics))
    results = {"total": 7.0, "recall": 0.9, "no": 1.0}
    ended = EpochEnded(1, 3, 30, 104.0, b"state", {"loss": "total"})
    record = history.add_epoch(ended, results=results)
    assert (record.loss, record.metrics) == (7.0, {"recall": 0.9, "raw": 2.5})


def test_a_model_without_a_loss_has_none():
    history = History()
    history.add(window(1, loss=None, metrics={"d_loss": 0.5, "g_loss": 1.5}))
    history.add_epoch(epoch(1, 1, 104.0))
    again = History.from_lines(history.lines())
    assert again.records[0].loss is None
    assert again.records == history.records
    assert again.history == {"d_loss": [0.5], "g_loss": [1.5], "learning_rate": [0.1]}
    assert np.isnan(again.to_pandas()["loss"][0])


def test_select_filters_by_worker_and_pass(history):
    assert [record.version for record in history.select(worker=1)] == [1, 3, 5]
    assert [record.version for record in history.select(worker=0, epoch=2)] == [4]


def test_points_are_a_curve_over_time_or_samples(history):
    assert history.points("val_loss") == [(3.0, 1.5), (5.0, 1.2)]
    assert history.points("val_loss", x="samples") == [(20.0, 1.5), (40.0, 1.2)]


def test_points_of_an_unknown_metric_name_the_known_ones(history):
    with pytest.raises(ConfigurationError, match=r"'val_acuracy'.*loss, accuracy, val_loss"):
        history.points("val_acuracy")
    with pytest.raises(ConfigurationError, match="Received: 'hours'"):
        history.points("loss", x="hours")


def test_lines_are_read_one_after_the_other(history):
    """The same history comes back, and a file of many windows is never one text."""
    steps = []

    class Watched(History):
        def add(self, record):
            steps.append("added")
            super().add(record)

    def lines():
        for line in history.lines():
            steps.append("read")
            yield line

    back = Watched.from_lines(lines())
    for name in ("params", "records", "epoch_records", "workers"):
        assert getattr(back, name) == getattr(history, name)
    assert [(each.status, each.rows) for each in back.workers] == [("joined", None), ("ready", 10)]
    assert steps == ["read", *["read", "added"] * sum(history.counts())]


def test_numbers_that_are_not_finite_survive_strict_json():
    history = History()
    history.add(window(1, loss=math.nan, metrics={"a": math.inf, "b": -math.inf}))
    lines = [*history.lines()]

    def refuse(name: str) -> None:
        pytest.fail(f"{name} is no strict JSON")

    for line in lines:
        json.loads(line, parse_constant=refuse)
    record = History.from_lines(lines).records[0]
    assert math.isnan(record.loss)
    assert record.metrics == {"a": math.inf, "b": -math.inf}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "format 1"),
        ("not json", "first line"),
        ("[1]", "first line"),
        ('{"kind": "history", "format": 2}', "format 1"),
        ('{"kind": "history", "format": 1}\n{"kind": "other"}', "Line 2.*kind"),
        ('{"kind": "history", "format": 1}\n{"kind": "window", "worker": 0}', "Line 2.*damaged"),
        ('{"kind": "history", "format": 1}\n{"kind": "epoch", "epoch": "x"}', "Line 2.*damaged"),
    ],
)
def test_text_that_is_no_history_is_refused(text, message):
    with pytest.raises(DataError, match=message):
        History.from_lines(text.splitlines())
