"""``--log-format json``: every line an object, the last one the result."""

from __future__ import annotations

import json
import sys
import threading

import pytest

from distkeras_grid.cli.common_options import run
from distkeras_grid.cli.console import report
from distkeras_grid.cli.exit_codes import ExitCode, run_command
from distkeras_grid.cli.main import main
from distkeras_grid.errors import ImageError
from distkeras_grid.trainers.run_status import run_progress


def lines_of(text):
    return [json.loads(line) for line in text.splitlines()]


def run_json(command, capsys):
    outputs = sys.stdout, sys.stderr
    code = run("tile", command, ["--log-format", "json"])
    assert (sys.stdout, sys.stderr) == outputs
    told = capsys.readouterr()
    return code, lines_of(told.out), lines_of(told.err)


def test_lines_progress_and_figures(capsys):
    def command(_):
        sys.stdout.write("looking ")
        sys.stdout.write("at images\n\nand more\n")
        with run_progress() as line:
            line.update(phase="getting ready")
        report(tiles=12, output="hdfs:///tiles")
        return run_command(lambda: ExitCode.PARTIAL)

    code, out, err = run_json(command, capsys)
    assert code == 7
    assert [line["message"] for line in out[:-1]] == ["looking at images", "and more"]
    assert {line["event"] for line in out[:-1] + err} == {"line"}
    assert err[0]["message"].startswith("getting ready")
    assert {line["verb"] for line in out + err} == {"tile"}
    last = out[-1]
    assert (last["event"], last["level"]) == ("result", "error")
    assert (last["exit_code"], last["exit"], last["tiles"]) == (7, "PARTIAL", 12)
    assert last["output"] == "hdfs:///tiles"
    assert last["seconds"] >= 0


def test_an_error_of_ours(capsys):
    def fail():
        raise ImageError("a.png is cut")

    code, out, err = run_json(lambda _: run_command(fail), capsys)
    assert code == 3
    assert (err[0]["event"], err[0]["level"]) == ("error", "error")
    assert err[0]["message"] == out[-1]["error"] == "ImageError: a.png is cut"
    # Figures of one command are not those of the next.
    code, out, err = run_json(lambda _: 0, capsys)
    assert (code, out[-1]["level"], err) == (0, "info", [])
    assert "error" not in out[-1]


def test_a_defect_is_one_line_with_its_traceback(capsys):
    with pytest.raises(SystemExit) as ended:
        run_json(lambda _: 1 // 0, capsys)
    told = capsys.readouterr()
    assert ended.value.code == 1
    (line,) = lines_of(told.err)
    assert "ZeroDivisionError" in line["message"]
    assert "Traceback" in line["message"]
    assert lines_of(told.out)[-1]["exit_code"] == 1


def test_usage_errors_and_unknown_codes(capsys):
    assert main(["evaluate", "--data", "x", "--log-format", "json", "--no-such-flag"]) == 2
    told = capsys.readouterr()
    (line,) = lines_of(told.err)
    assert line["event"] == "error"
    assert "--no-such-flag" in line["message"]
    last = lines_of(told.out)[-1]
    assert (last["exit"], last["error"]) == ("USAGE", line["message"])
    code, out, _ = run_json(lambda _: 42, capsys)
    assert (code, out[-1]["exit_code"], out[-1]["exit"]) == (42, 42, "")


def test_lines_of_two_threads_stay_whole(capsys):
    both_begun = threading.Barrier(2, timeout=10)

    def write(name):
        sys.stdout.write(f"{name} begins ")
        both_begun.wait()
        sys.stdout.write(f"{name} ends\n")

    def command(_):
        threads = [threading.Thread(target=write, args=(name,)) for name in "ab"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
        return 0

    _, out, _ = run_json(command, capsys)
    assert sorted(line["message"] for line in out[:-1]) == ["a begins a ends", "b begins b ends"]


def test_text_is_the_default_and_other_flags_pass(capsys):
    got = []

    def command(rest):
        got.extend(rest)
        sys.stdout.write("plain\n")
        return 0

    assert run("train", command, ["--log", "x", "--set", "a=b"]) == 0
    assert (got, capsys.readouterr().out) == (["--log", "x", "--set", "a=b"], "plain\n")
