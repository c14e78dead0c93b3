"""A driver of its own with one or several runs of the counting model at the same time.

``python -m tests.faults.together_job FOLDER RUNS OTHERS PORT`` trains so many runs of two workers
in threads. Each of them waits at the end of its first epoch for all others, also those of
``OTHERS`` more drivers with the same folder. Servers ask for the port. The samples and weights of
each run are written to ``FOLDER/result-PID-RUN.json``.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path

from tests.faults import counting

ROWS, EPOCHS, SECONDS = 240, 10, 200.0


def meeting(folder: Path, name: str, count: int):
    """Return a callback's function that waits until so many runs have come as far."""

    def meet() -> None:
        (folder / f"met-{name}").touch()
        until = time.monotonic() + SECONDS
        while len([*folder.glob("met-*")]) < count:
            if time.monotonic() > until:
                raise TimeoutError("the other run has not come as far")
            time.sleep(0.02)

    return meet


def trainer_of(folder: Path, **arguments):
    import distkeras_grid

    loss = counting.negative_sum(folder)
    settings = {"num_workers": 2, "batch_size": 4, "num_epoch": EPOCHS, "communication_window": 2}
    return distkeras_grid.DOWNPOUR(
        counting.counting_model(ROWS, loss),
        features_col="x",
        custom_objects={"loss": loss},
        progress=False,
        **{**settings, **arguments},
    )


def train(spark, trainer, folder: Path, name: str, count: int) -> None:
    met = counting.at_epoch(1, meeting(folder, name, count))
    model = trainer.train(counting.counting_data(spark, ROWS), seed=1, callbacks=[met])
    told = {
        "samples": trainer.history.samples,
        "weights": model.get_weights()[0].ravel().tolist(),
    }
    (folder / f"result-{name}.json").write_text(json.dumps(told))


def main(text: str, runs: str, others: str, port: str) -> None:
    from distkeras_grid.spark.session import build_session

    folder, number = Path(text), int(runs)
    spark = build_session("together", master=f"local[{2 * number},4]")
    threads = []
    for run in range(number):
        name = f"{os.getpid()}-{run}"
        (folder / name).mkdir()
        trainer = trainer_of(folder / name, master_port=int(port))
        arguments = (spark, trainer, folder, name, number + int(others))
        threads.append(threading.Thread(target=train, args=arguments))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main(*sys.argv[1:])
