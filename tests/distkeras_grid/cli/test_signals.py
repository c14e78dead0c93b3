"""SIGTERM and SIGINT to a command in a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from contextlib import nullcontext

import pytest

from distkeras_grid.cli.exit_codes import ExitCode
from distkeras_grid.signals import interrupts_first, terminable

pytestmark = pytest.mark.slow

COMMAND = """
import signal, sys, time
from distkeras_grid.cli.exit_codes import run_command
from distkeras_grid.cli.common_options import run

signal.signal(signal.SIGINT, signal.default_int_handler)

def work():
    try:
        print("working", flush=True)
        # A signal just before a long sleep would be seen after it.
        for _ in range(600):
            time.sleep(0.1)
    finally:
        print("stopped", flush=True)

def bare(rest):
    work()

commands = {"bare": bare, "guarded": lambda rest: run_command(work)}
raise SystemExit(run("train", commands[sys.argv[1]], sys.argv[2:]))
"""
FOLLOWING = """
import signal, sys
from distkeras_grid.cli.common_options import run
from distkeras_grid.submission import spark_submit

# These tests may run in a script's background, where SIGINT is ignored.
ignored = sys.argv[3:] == ["ignored"]
signal.signal(signal.SIGINT, signal.SIG_IGN if ignored else signal.default_int_handler)
spark_submit.STOP_SECONDS = float(sys.argv[1])
code = run("submit", lambda _: spark_submit.follow([sys.executable, "-c", sys.argv[2]]), [])
raise SystemExit(code)
"""
#: Says how often it is interrupted, and never ends.
FOLLOWED = """
import signal, sys, time
def told(number, frame):
    print(signal.Signals(number).name, flush=True)
signal.signal(signal.SIGINT, told)
signal.signal(signal.SIGTERM, told)
print("working", flush=True)
while True:
    time.sleep(0.1)
"""

#: Stands for spark-submit's JVM, which cannot be used any more once it is interrupted, and starts
#: a driver. Both tell what reaches them. Its first child is one that it never asks how it ended.
JVM = """
import os, signal, subprocess, sys, time
def told(number, frame):
    print("JVM:", signal.Signals(number).name, flush=True)
    os._exit(1)
signal.signal(signal.SIGINT, told)
signal.signal(signal.SIGTERM, told)
shell = subprocess.Popen(["true"])
driver = subprocess.Popen([sys.executable, "-c", {driver!r}])
code = driver.wait()
print("JVM: the driver ended with", code, flush=True)
time.sleep({stays})
raise SystemExit(code)
"""
#: Needs the JVM for a while when it is interrupted.
DRIVER = """
import os, signal, time
jvm = os.getppid()
def told(number, frame):
    print("driver:", signal.Signals(number).name, flush=True)
    time.sleep(0.5)
    print("driver:", "saved" if os.getppid() == jvm else "lost", flush=True)
    os._exit(3)
signal.signal(signal.SIGINT, told)
signal.signal(signal.SIGTERM, told)
print("working", flush=True)
while True:
    time.sleep(0.1)
"""
#: Does not end, whatever it is told.
DEAF = """
import os, signal, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("working", flush=True)
while True:
    time.sleep(0.1)
"""


def interrupted(number, program, *arguments, again=False):
    with subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout.readline() == "working\n"
            os.kill(process.pid, number)
            if again:
                assert process.stdout.readline() == "SIGINT\n"
                os.kill(process.pid, number)
            # The end of the output is the end of all its processes.
            out, err = process.communicate(timeout=30)
        finally:
            process.kill()
    return process.returncode, out.splitlines(), err


@pytest.mark.parametrize("kind", ["guarded", "bare"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_both_signals_stop_the_work_and_end_with_one_line(number, kind):
    code, out, err = interrupted(number, COMMAND, kind)
    assert (code, out, err) == (ExitCode.INTERRUPTED, ["stopped"], "interrupted\n")


def test_the_last_line_of_json_tells_of_the_interrupt():
    program = COMMAND.replace(
        'print("working", flush=True)', 'sys.__stdout__.write("working\\n"); sys.__stdout__.flush()'
    )
    code, out, _ = interrupted(signal.SIGTERM, program, "guarded", "--log-format", "json")
    last = json.loads(out[-1])
    assert code == last["exit_code"] == ExitCode.INTERRUPTED
    assert last["exit"] == "INTERRUPTED"


@pytest.mark.parametrize(
    ("number", "background", "arrives"),
    [
        (signal.SIGTERM, [], "SIGINT"),
        (signal.SIGINT, [], "SIGINT"),
        (signal.SIGTERM, ["ignored"], "SIGTERM"),
    ],
)
def test_the_driver_is_interrupted_once_and_has_its_jvm_for_as_long_as_it_needs_it(
    number, background, arrives
):
    """In the background of a script SIGINT is ignored."""
    jvm = JVM.format(stays=0, driver=DRIVER)
    code, out, _ = interrupted(number, FOLLOWING, "20", jvm, *background)
    assert code == ExitCode.INTERRUPTED
    assert out == [f"driver: {arrives}", "driver: saved", "JVM: the driver ended with 3"]


def test_a_jvm_that_stays_when_its_driver_has_ended_is_interrupted_soon():
    following = FOLLOWING.replace("code =", "spark_submit.END_SECONDS = 0.5\ncode =")
    code, out, _ = interrupted(signal.SIGTERM, following, "60", JVM.format(stays=60, driver=DRIVER))
    assert (code, out[-1]) == (ExitCode.INTERRUPTED, "JVM: SIGINT")


def test_a_driver_that_does_not_end_loses_its_jvm_and_is_killed():
    code, out, _ = interrupted(signal.SIGTERM, FOLLOWING, "0.5", JVM.format(stays=0, driver=DEAF))
    assert (code, out) == (ExitCode.INTERRUPTED, ["JVM: SIGINT"])


def test_what_does_not_end_when_it_is_interrupted_is_killed():
    code, out, _ = interrupted(signal.SIGTERM, FOLLOWING, "0.5", FOLLOWED)
    assert (code, out) == (ExitCode.INTERRUPTED, ["SIGINT"])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_kills_what_does_not_end_at_the_first(number):
    code, out, _ = interrupted(number, FOLLOWING, "60", FOLLOWED, again=True)
    assert (code, out) == (ExitCode.INTERRUPTED, [])


def failing(begins_before):
    """Fail after an interrupt, in work that has begun before it, or while it is handled."""
    with interrupts_first() if begins_before else nullcontext():
        try:
            raise KeyboardInterrupt
        finally:
            with interrupts_first():
                raise OSError("Job 3 cancelled")


def test_an_interrupt_wins_over_the_error_that_it_brings():
    with pytest.raises(KeyboardInterrupt):
        failing(begins_before=True)


def test_what_is_undone_after_an_interrupt_has_errors_of_its_own():
    """A file that was not there, which is no error, ended the deleting of the others."""
    with pytest.raises(OSError, match="cancelled"):
        failing(begins_before=False)


def test_the_handler_of_before_comes_back_and_other_threads_are_left_alone():
    before = signal.getsignal(signal.SIGTERM)
    with terminable():
        assert signal.getsignal(signal.SIGTERM) is not before
    assert signal.getsignal(signal.SIGTERM) is before
    seen = []

    def enter():
        with terminable():
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join(10)
    assert seen == [before]


def test_an_interrupt_in_a_finalizer_is_not_lost():
    """It came while Py4J told the JVM of an object that was gone: the command ran to its end."""

    class Gone:
        pass

    def work():
        with terminable():
            objects.clear()
            time.sleep(10)

    objects = [Gone()]
    finalizer = weakref.ref(objects[0], lambda _: signal.raise_signal(signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        work()
    assert finalizer() is None


def test_other_errors_of_finalizers_are_told_as_before(monkeypatch):
    told = []
    monkeypatch.setattr(sys, "unraisablehook", lambda ignored: told.append(ignored.exc_type))

    class Gone:
        def __del__(self):
            raise LookupError

    with terminable():
        Gone()
    assert told == [LookupError]


def test_a_handler_of_the_program_is_left_alone():
    def own(*_):
        pass

    before = signal.signal(signal.SIGTERM, own)
    try:
        with terminable():
            assert signal.getsignal(signal.SIGTERM) is own
        assert signal.getsignal(signal.SIGTERM) is own
    finally:
        signal.signal(signal.SIGTERM, before)
