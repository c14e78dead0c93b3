"""Each benchmark at its smallest size: ``python -m tests.benchmarks.smallest NAME``.

Its figures say nothing. It shows that a benchmark still fits what it measures.
"""

from __future__ import annotations

import gzip
import importlib
import os
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from data_prep import TileSpec
from tests.benchmarks import __main__ as benchmarks
from tests.benchmarks import fashion

#: More than the rows on which targets are chosen.
TRAINING_ROWS = fashion.VALIDATION_ROWS + 1024
TEST_ROWS = 100


@dataclass(frozen=True)
class Smallest:
    """How a benchmark becomes small."""

    words: tuple[str, ...] = ()  # Its arguments
    # New values of constants, by module and name
    constants: dict[str, dict[str, Any]] = field(default_factory=dict)


EPOCHS = {"EPOCHS": 2}
SMALLEST = {
    "servers": Smallest(
        (
            *("--megabytes", "1", "--clients", "1", "2", "--servers", "1", "2"),
            *("--seconds", "0.5"),
        ),
    ),
    "tiling": Smallest(
        constants={
            "tiling": {"SPEC": TileSpec(64, angles=[0, 30]), "SIZE": (160, 120), "REPETITIONS": 1}
        }
    ),
    "large_images": Smallest(constants={"large_images": {"WIDTH": 512, "HEIGHTS": (512,)}}),
    "training": Smallest(
        (
            *("--nets", "mlp", "--batches", "32", "--repetitions", "1", "--seeds", "1"),
            *("--parts", "epochs", "accuracy"),
        ),
        {
            "epochs": {"TRIAL_STEPS": 2, "EPOCHS_OF_OURS": {"mlp": 1}},
            "curves": EPOCHS,
            "accuracy": EPOCHS,
        },
    ),
    "fuzz": Smallest(("--inputs", "200")),
    "scale planning": Smallest(("--planned", "60", "--part", "planning")),
    "scale likeness": Smallest(("--planned", "60", "--part", "likeness")),
}


def run(name: str, folder: Path) -> int:
    """Run a benchmark at its smallest size, with images in `folder`."""
    smallest, random = SMALLEST[name], np.random.default_rng(0)
    for module, constants in smallest.constants.items():
        changed = importlib.import_module(f"tests.benchmarks.{module}")
        for constant in constants:
            # One that is not there any more would be changed in vain.
            getattr(changed, constant)
        vars(changed).update(constants)
    os.environ[fashion.VARIABLE] = str(_write_idx(folder / "idx", random))
    module = importlib.import_module(f"tests.benchmarks.{name.partition(' ')[0]}")
    return int(module.main(*([smallest.words] if smallest.words else [])) or 0)


def _write_idx(folder: Path, random: np.random.Generator) -> Path:
    """Write the four files of Fashion-MNIST with fewer images, which are noise."""
    folder.mkdir()
    for split, count in (("train", TRAINING_ROWS), ("test", TEST_ROWS)):
        images = random.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        labels = random.integers(0, 10, count).astype(np.uint8)
        for file, values in zip(fashion.FILES[split], (images, labels), strict=True):
            head = bytes((0, 0, 8, values.ndim)) + np.array(values.shape, ">i4").tobytes()
            (folder / file).write_bytes(gzip.compress(head + values.tobytes(), 1))
    return folder


def names() -> list[str]:
    """Return all benchmarks; each has a smallest size."""
    return sorted({*benchmarks.NAMES, *SMALLEST})


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="dkg-smallest-") as found:
        sys.exit(run(" ".join(sys.argv[1:]), Path(found)))
