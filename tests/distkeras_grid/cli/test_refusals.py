"""What is wrong with a command line is told in one line that names it, before anything is done."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from distkeras_grid.cli.exit_codes import ExitCode
from distkeras_grid.cli.main import main

ON_HDFS = ("put a.tif /raw", "get /raw .", "ls /raw", "rm /raw")
ON_YARN = ("cancel", "logs", "status")
ID = "application_1_0001"
TRAIN = "train --data tiles --model m:build --output run"

WRONG_FLAGS = [
    ("evalute", "no verb 'evalute' (did you mean 'evaluate'?). Known: tile, ingest, train, "),
    ("evaluate --overwrite", "--data. See distkeras-grid evaluate --help."),
    ("tile --input i --output o --anlges 0", "(did you mean --angles?)"),
    ("evaluate --data a --lable b", "(did you mean --label?)"),
    ("submit --exectors 3 train", "(did you mean --executors?)"),
    # A container would tell it a minute later.
    ("submit evaluate --data x --lable=b", "distkeras-grid evaluate: unrecognized arguments: --la"),
    (
        "submit sandbox",
        "A job is one of tile, train, retrain, predict, evaluate, compact, export, ",
    ),
    ("submit nowhere.py", "There is no file 'nowhere.py' here"),
    ("submit --py-files lost.py evaluate --data x", "There is no file 'lost.py' here"),
    ("submit --detach evaluate --data x", "--detach goes with --deploy-mode cluster"),
    *(
        (f"re{TRAIN} {flag}", told)
        for flag, told in (
            ("--overwrite", "--overwrite does not apply"),
            ("--data-version 3", "--data-version does not apply"),
            ("--keep 0", "from 1"),
        )
    ),
    ("doctor --servers 0", "servers"),
    *(
        (f"doctor '--model={text}'", "model.count_params()")
        for text in ("model.keras", "25 M", "-1", "")
    ),
    *(
        (f"{TRAIN} --class-weight={text}", "NUMBER=WEIGHT")
        for text in ("balance", "basalt=2", "1=", "=2", "1=much", "1=1,,2=2")
    ),
    *((words, "Nothing tells where WebHDFS answers: give --url") for words in ON_HDFS),
    ("put --url localhost:1 a.tif /raw", "looks like http://namenode:9870"),
    *(
        (f"put --threads {number} --url http://nn a.tif /raw", "threads must be from 1 to 64")
        for number in (0, -1, 65)
    ),
    *((f"{verb} application_1", "looks like application_1700000000000_0001") for verb in ON_YARN),
    *((f"{verb} {ID}", "HADOOP_CONF_DIR is not set") for verb in ON_YARN),
    *(
        (f"{words} {flags}", told)
        for words in (*ON_HDFS, *(f"{verb} {ID}" for verb in ON_YARN))
        for flags, told in (
            ("--principal ada", "--principal and --keytab"),
            ("--keytab ada", "--principal and --keytab"),
            ("--principal ada@GRID --keytab none.keytab", "none.keytab"),
        )
    ),
]
REFUSALS = [
    *((words, ExitCode.USAGE, told) for words, told in WRONG_FLAGS),
    *((f"{each} --url http://localhost:1", 4, "at localhost:1 refuses") for each in ON_HDFS),
    *(
        (f"sandbox {verb} --folder {folder}", ExitCode.CLUSTER, "There is no sandbox in /")
        for verb in ("stop", "status")
        for folder in (".", "none")
    ),
]


@pytest.mark.parametrize(("words", "code", "told"), REFUSALS)
def test_what_is_wrong_is_one_line(
    words: str,
    code: int,
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("WEBHDFS_URL", "HADOOP_CONF_DIR", "YARN_CONF_DIR"):
        monkeypatch.delenv(name, raising=False)
    try:
        ended = main(shlex.split(words))
    except SystemExit as stop:
        ended = stop.code
    written = capsys.readouterr()
    assert ended == code
    assert told in written.err
    assert written.err.count("\n") == 1
    assert not written.out
    assert list(tmp_path.iterdir()) == []
