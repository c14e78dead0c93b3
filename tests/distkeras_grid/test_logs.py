"""What counts in a log: a pure function of its lines."""

from __future__ import annotations

import pytest

from distkeras_grid.logs import cause, cause_and_end

PYTHON = """\
epoch 1/2  40%
Traceback (most recent call last):
  File "job.py", line 3, in <module>
    inner()
KeyError: 'a'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "job.py", line 5, in <module>
    raise ValueError("the one")
ValueError: the one
"""
JAVA = """\
26/11/23 09:45:16 WARN Path: /a should be specified as a URI
Exception in thread "main" org.apache.spark.SparkException: Exception thrown in awaitResult:
	at org.apache.spark.util.ThreadUtils.awaitResult(ThreadUtils.scala:310)
Caused by: java.net.ConnectException: Call From a/127.0.0.1 to b:8032 failed
	at sun.reflect.Native(Unknown Source)
	... 12 more
26/11/23 09:45:16 INFO ShutdownHookManager: Shutdown hook called
"""
DAEMON = """\
2026-11-23T09:43:33,440 WARN Util: Path /x should be specified as a URI in configuration files.
2026-11-23T09:43:33,441 ERROR NameNode: Failed to start namenode.
java.net.BindException: Problem binding to [localhost:1] java.net.BindException: Address in use
	at java.base/sun.nio.ch.Net.bind0(Native Method)
2026-11-23T09:43:33,442 INFO ExitUtil: Exiting with status 1: java.net.BindException: Problem
"""
OURS = """\
starting Spark  8 s
PathNotFoundError: There is nothing at hdfs:///nowhere. Check the path.
"""
OURS_AS_JSON = """\
{"time": "t", "level": "info", "event": "line", "message": "NotThisError: an output"}
{"time": "t", "level": "error", "event": "error", "message": "DataError: no rows"}
{"time": "t", "level": "error", "event": "result", "message": "the data do not fit"}
"""
LEVELS = """\
26/11/23 09:45:16 ERROR ApplicationMaster: User application exited with status 1
26/11/23 09:45:16 INFO MemoryStore: MemoryStore cleared
"""


@pytest.mark.parametrize(
    ("log", "line"),
    [
        (PYTHON, "ValueError: the one"),
        (JAVA, "java.net.ConnectException: Call From a/127.0.0.1 to b:8032 failed"),
        (
            DAEMON,
            "java.net.BindException: Problem binding to [localhost:1] "
            "java.net.BindException: Address in use",
        ),
        (OURS, OURS.splitlines()[1]),
        (OURS_AS_JSON, "DataError: no rows"),
        (LEVELS, LEVELS.splitlines()[0]),
        (
            "java.lang.OutOfMemoryError: Java heap space\n",
            "java.lang.OutOfMemoryError: Java heap space",
        ),
        ("KeyboardInterrupt\n", "KeyboardInterrupt"),
        ("trained 6 samples: loss 0.1\nwrote /run\n", None),
        ("an Error: in prose\n  ValueError: indented\n", None),
        ('{"event": "error", "message": ""}\n', None),
        ("", None),
    ],
)
def test_the_line_that_counts(log: str, line: str | None):
    assert cause(log) == line


def test_it_stands_before_the_end_which_has_no_stack():
    told = cause_and_end(JAVA, lines=2).splitlines()
    assert told[0] == "java.net.ConnectException: Call From a/127.0.0.1 to b:8032 failed"
    assert told[-1].endswith("Shutdown hook called")
    assert len(told) == 3
    assert not any(line.startswith("\t") for line in told)


def test_a_line_is_not_told_twice_in_a_row():
    assert cause_and_end(OURS, lines=1).splitlines() == [OURS.splitlines()[1]]


def test_a_log_that_tells_no_error_ends_as_it_ends():
    assert cause_and_end("a\n\nb\nc\n", lines=2) == "b\nc"
