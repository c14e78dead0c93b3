"""A driver of its own, without Spark, that dies in the middle of a frame.

``python -m tests.faults.frames_job FOLDER FAMILY KIND FRAME SHARE`` trains with checkpoints in
FOLDER, or goes on from them. It kills itself when so large a share of that frame was passed on
between workers and server; with frame 0 it does not. It writes what came out to
``FOLDER/result.json``.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

from distkeras_grid.rules import build_rule
from tests.distkeras_grid.parameter_server.relay import Moment, Relay
from tests.distkeras_grid.trainers.test_checkpointed_run import Execution, windows_of
from tests.invariants.test_fault_product import FAMILIES


def execution(folder: Path, family: str, kind: str, run=Execution, **terms):
    name, parameters, workers, changes = FAMILIES[family]
    rule = build_rule(name, parameters)
    return run(folder, workers, rule=rule, kind=kind, **changes, **terms)


def main(text: str, family: str, kind: str, frame: str, share: str) -> None:
    folder, relays = Path(text), []

    def through(server):
        def die():
            (folder / "server").write_text(str(server._started.process.pid))
            os.kill(os.getpid(), signal.SIGKILL)

        relays.append(Relay(server.address, moment=Moment(int(frame), float(share), die)))
        return relays[0]

    every = 0.05
    run = execution(folder / "checkpoints", family, kind, every=every, through=through)
    told = {
        "center": run.center.tolist(),
        "windows": windows_of(run.history),
        "resumed": run.resumed is not None,
        "frames": relays[0].frames,
    }
    (folder / "result.json").write_text(json.dumps(told))


if __name__ == "__main__":
    main(*sys.argv[1:])
