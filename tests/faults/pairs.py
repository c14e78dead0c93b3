"""Runs of worker processes, a server process and the driver's own loop, with a fault at a point.

There is no Spark and no Keras in them, so a run takes seconds. `ProcessLaunch` does what Spark does
for the driver: it starts a worker's process, and starts it again when it has died. Faults are
placed by latches in the workers and by the relay in front of the server.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from contextlib import ExitStack

import numpy as np

from distkeras_grid.history import History
from distkeras_grid.parameter_server.auth import new_key
from distkeras_grid.parameter_server.messages import (
    CommitReply,
    PutOptimizerState,
    PutWorkerState,
    Ready,
    Start,
    WindowCommit,
    WorkerEnd,
    WorkerHello,
)
from distkeras_grid.parameter_server.process import ServerProcess
from distkeras_grid.parameter_server.retry_policy import MOST_FAILURES
from distkeras_grid.progress import SILENT
from distkeras_grid.spark.worker_jobs import job_error, spark_reason
from distkeras_grid.trainers.run import CallbackDecision, Run
from distkeras_grid.trainers.run_status import run_progress
from tests.distkeras_grid.parameter_server.relay import Fault, Relay
from tests.faults import pair_worker
from tests.faults.pair_worker import FENCED
from tests.invariants.small_runs import EPOCHS, SIZE, terms_of, victim_of
from tests.specs import make_settings

#: Workers are forked from a process that has imported what they need, so one starts in no time.
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["tests.faults.pair_worker"])
#: Limits of the runs [s], and how long what is slow takes: shorter than they are.
START, ROUND, SLOW = 8.0, 4.0, 1.5
LONGEST = 60.0
#: Points at which the relay holds a frame: its kind, which one of the seat, and the share that
#: has passed. At the others, a worker waits at a latch of its own.
FRAMES = {
    "half a commit": (WindowCommit, 3, 0.5),
    "folded and no reply": (CommitReply, 3, 0.0),
    "half a reply": (CommitReply, 3, 0.5),
    "half of what it keeps": (PutWorkerState, 1, 0.5),
    "hand-over": (PutOptimizerState, 1, 0.5),
    "finish": (WorkerEnd, 1, 0.0),
}
#: The frame that a worker sends next after a latch, or while it waits at the gate.
NEXT = {
    "hello": WorkerHello,
    "spool": Ready,
    "warm-up": Ready,
    "gate": Start,
    "window": WindowCommit,
    "epoch end": WindowCommit,
}


class ProcessLaunch:
    """What `WorkerJobs` is for a run, with processes in place of Spark's tasks."""

    dealing, failures_of_a_job = False, MOST_FAILURES

    def __init__(self, pair, address):
        self.pair, self._address = pair, address
        self._lock = threading.RLock()
        self._number = 0
        self.attempts, self._newest, self._failures = [], {}, [0] * pair.workers
        self._given_up, self._killed, self.all_processes = set(), set(), []

    def spawn(self, seat):
        with self._lock:
            number, self._number = self._number, self._number + 1
            told = self.pair.told(seat, number, self._address)
            process = PROCESSES.Process(target=pair_worker.main, args=(told,), daemon=True)
            process.start()
            self._newest[seat] = (number, process)
            self.attempts.append((seat, number))
            self.all_processes.append(process)
            return number, process

    def newest(self, seat):
        with self._lock:
            return self._newest[seat]

    def start(self):
        if not self.attempts:
            for seat in range(self.pair.workers):
                self.spawn(seat)

    def _look(self):
        """Start again what has died, as Spark does."""
        with self._lock:
            for seat, (number, process) in list(self._newest.items()):
                code = process.exitcode
                if code in (None, 0, FENCED) or seat in self._given_up:
                    continue
                if self.pair.fault == "slot gone" and seat == self.pair.victim:
                    continue
                if number not in self._killed:
                    self._failures[seat] += 1
                    if self._failures[seat] % MOST_FAILURES == 0:
                        self._given_up.add(seat)
                        continue
                self.spawn(seat)

    @property
    def failed(self):
        with self._lock:
            return tuple(sorted(self._given_up))

    @property
    def done(self):
        with self._lock:
            return all(
                process.exitcode == 0 or seat in self._given_up
                for seat, (_, process) in self._newest.items()
            )

    def wait(self, timeout):
        until = time.monotonic() + timeout
        while time.monotonic() < until and not self.done:
            self._look()
            time.sleep(0.02)
        return self.done

    def again(self, seat):
        with self._lock:
            self._given_up.discard(seat)
            self.spawn(seat)

    def reason_of_loss(self, seat, attempt):  # noqa: ARG002
        return ""

    def restart(self, attempt):
        with self._lock:
            for number, process in self._newest.values():
                if number == attempt:
                    self._killed.add(number)
                    process.kill()
                    process.join()

    def cancel(self):
        with self._lock:
            for process in self.all_processes:
                process.kill()
                process.join()

    def close(self):
        """Forget the processes, when nobody looks at them any more."""
        for process in self.all_processes:
            process.close()

    def error(self, seat=None):
        """What Spark would tell of the newest attempt of a seat."""
        if seat is None:
            return None
        number, _ = self.newest(seat)
        told = (self.pair.folder / f"told-{number}").read_text()
        died = "Python worker exited unexpectedly"
        return job_error("pairs", spark_reason(RuntimeError(told or died)), "yarn")

    def rows(self):
        return []


class Observer:
    def __init__(self, history):
        self._history = history

    def __call__(self, event, center):  # noqa: ARG002
        return self._history.add_epoch(event), CallbackDecision()

    def record(self, event):
        return self._history.add_epoch(event)


class Pair:
    """One run of a family with one fault at one point; without a point nothing happens to it."""

    def __init__(self, folder, family, kind, point=None, fault="kill"):
        terms = terms_of(family, kind, start_timeout=START, round_timeout=ROUND)
        self.folder, self.kind = folder, kind
        self.point, self.fault, self.workers = point, fault, terms["workers"]
        self.victim = victim_of(point, self.workers)
        self.settings = make_settings(run="pairs", **terms)
        self.key, self.history = new_key(), History()
        self.center = self.error = None
        self.strikes, self.notes, self.problem = 0, [], None

    def told(self, seat, number, address):
        """What a worker's process is given."""
        mine = seat == self.victim and self.point is not None
        again = mine and self.strikes > 0
        return {
            "spec": self.settings.spec.to_json(),
            "address": address.to_json(),
            "key": self.key.hex(),
            "seat": seat,
            "attempt": number,
            "first_attempt": seat,
            "kind": self.kind,
            "folder": str(self.folder),
            "latch": self.point if mine and self._strikes_again else None,
            "digest": 16 * ("b" if again and self.fault == "rows changed" else "a"),
            "after_others": self.point == "gate" and not mine,
            "full_disk": mine and self._strikes_again and self.fault.startswith("disk"),
        }

    @property
    def _strikes_again(self):
        return self.strikes < (5 if self.fault.endswith("x5") else 1)

    def serve(self, center):
        return ServerProcess(self.settings, center, self.key)

    def relayed(self, server):
        """The address that workers reach through the relay."""
        return server.address

    def go(self):
        """Run until there is a center or an error."""
        with ExitStack() as stack:
            server = stack.enter_context(self.serve(np.ones(SIZE, np.float32)))
            self.relay = stack.enter_context(Relay(self.relayed(server)))
            progress = stack.enter_context(run_progress(SILENT))
            progress.update(total_samples=1, epochs=EPOCHS, workers=self.workers)
            self.launch = ProcessLaunch(self, self.relay.address)
            stack.callback(self.launch.close)
            stack.callback(self.launch.cancel)
            self._hold_frame()
            striker = threading.Thread(target=self._strike)
            run = Run(
                *(server, self.launch, self.settings.spec, self.history),
                *(progress, Observer(self.history)),
            )
            self.launch.start()
            striker.start()
            try:
                self.center, _ = run.execute()
            except Exception as error:  # noqa: BLE001 - the test looks at its class
                self.error = error
            finally:
                self.ended = True
                striker.join(LONGEST)
        assert not striker.is_alive()
        if self.problem is not None:
            raise self.problem
        return self

    # -- the fault ------------------------------------------------------------------------------

    ended, _ready = False, None

    def _hold_frame(self):
        """Let the relay hold the frame of the point, or break there."""
        if self.point in FRAMES:
            kind, nth, share = FRAMES[self.point]
            self.relay.add(Fault(kind, self._act, nth, self.victim, share, LONGEST))

    @property
    def _act(self):
        """What happens to the frame of the point; a killed process sends no more of it."""
        if self.fault in ("stop", "slow", "zombie twin"):
            return "hold"
        return "reset" if self.fault == "reset" else "swallow"

    def _strike(self):
        try:
            while self.point is not None and self._strikes_again and self._reached():
                self.strikes += 1
                self._harm()
        except Exception as error:  # noqa: BLE001 - raised by the test's own thread
            self.problem = error

    def _reached(self):
        """Wait until the victim is at the point; False if the run ends before."""
        struck = len(self.relay.struck) if self.point in FRAMES and self.strikes == 0 else None
        until = time.monotonic() + LONGEST
        while not self.ended:
            if struck is not None:
                there = bool(self.relay.struck)
            elif self.point in FRAMES:
                there = len(self.relay.struck) > self.strikes
            elif self.point == "gate":
                there = self.relay.passed.get(Ready) is not self._ready
            else:
                number, process = self.launch.newest(self.victim)
                there = (self.folder / f"reached-{number}").exists() and process.is_alive()
            if there:
                return True
            assert time.monotonic() < until, "the point was not reached"
            time.sleep(0.01)
        return False

    def _harm(self):
        number, process = self.launch.newest(self.victim)
        self._ready = self.relay.passed.get(Ready)
        if self.fault in ("kill", "slot gone", "rows changed", "executor x5"):
            self._kill(process)
        elif self.fault == "stop":
            os.kill(process.pid, signal.SIGSTOP)
        elif self.fault == "zombie twin":
            self.launch.spawn(self.victim)
            self._wait(lambda: self.relay.passed.get(Ready) is not self._ready)
        elif self.fault == "slow":
            time.sleep(SLOW)
        elif self.point not in FRAMES:
            self._break_connection()
        self.relay.release()
        (self.folder / f"go-{number}").touch()
        if self.fault.startswith("disk"):
            process.join()
        if not self._strikes_again:
            (self.folder / "others").touch()

    def _kill(self, process):
        if self.point in FRAMES and self._strikes_again:
            kind, _, share = FRAMES[self.point]
            self.relay.add(Fault(kind, self._act, 0, self.victim, share, LONGEST))
        process.kill()
        process.join()
        if self.point in FRAMES and not self._strikes_again:
            self.relay._faults.clear()

    def _break_connection(self):
        """At a latch, or at the gate; in the middle of a frame, the relay has done it."""
        if self.fault == "reset":
            self.relay.cut("reset")
        elif self.fault == "cut half-open":
            self.relay.add(Fault(NEXT[self.point], "swallow", 0, self.victim))
            threading.Timer(1.0, self.relay._faults.clear).start()

    def _wait(self, condition):
        until = time.monotonic() + LONGEST
        while not condition():
            assert time.monotonic() < until
            time.sleep(0.01)
