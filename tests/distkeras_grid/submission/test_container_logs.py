"""Logs within what YARN writes about them, and which of them tell why an application failed."""

from __future__ import annotations

import pytest

from distkeras_grid.submission.container_logs import cause_in, outputs_of_driver, section
from tests.distkeras_grid.submission.pages import Logs

HEAD = b"Container: c on n\nLogAggregationType: AGGREGATED\n====\nLogType:stdout\n"


@pytest.mark.parametrize(
    ("told", "last", "log"),
    [
        (
            HEAD + b"LogLength:4\nLogContents:\nab\n\n\nEnd of LogType:stdout\n***\n",
            None,
            "ab\n\n",
        ),
        (HEAD + b"LogLength:4\nLogContents:\nb\n\nEnd of LogType:stdout", 2, "b\n"),
        (HEAD + b"LogLength:2\nLogContents:\nabEnd of LogType:x.This log", 9, "ab"),
        (HEAD + b"LogLength:26\nLogContents:\nLogLength:1\nLogContents:\n\nx", None, None),
        (b"Can not find the logs\n", None, ""),
        (HEAD + b"LogContents:\nno length\n", None, ""),
    ],
)
def test_the_log_is_taken_by_its_length(told: bytes, last: int | None, log: str | None):
    expected = "LogLength:1\nLogContents:\n\nx"[:26] if log is None else log
    assert section(told, last) == expected


FIRST, SECOND = "container_17_0001_01_000001", "container_17_0001_02_000001"


def test_the_last_attempt_s_driver_tells_its_output_before_spark_s():
    logs = Logs(
        {
            (FIRST, "stdout"): "ValueError: of the first attempt\n",
            (SECOND, "stderr"): "java.lang.IllegalStateException: Spark says\n",
            (SECOND, "stdout"): "KeyError: 'mine'\n",
            (SECOND, "prelaunch.out"): "ValueError: not a program's\n",
            ("container_17_0001_02_000002", "stderr"): "ValueError: an executor's\n",
        }
    )
    assert [file.name for file in outputs_of_driver(logs)] == ["stdout", "stderr"]
    assert cause_in(logs) == "KeyError: 'mine'"
    logs.logs[SECOND, "stdout"] = "epoch 1\n"
    assert cause_in(logs) == "java.lang.IllegalStateException: Spark says"
    assert cause_in(Logs({})) is None
