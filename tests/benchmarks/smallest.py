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
from numpy.typing import NDArray

from data_prep import TileSpec
from tests.benchmarks import __main__ as benchmarks
from tests.benchmarks import fashion

#: More than the rows on which targets are chosen.
TRAINING_ROWS = fashion.VALIDATION_ROWS + 1024
TEST_ROWS = 100


PROJECT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Smallest:
    """How a benchmark becomes small."""

    words: tuple[str, ...] = ()  # Its arguments
    # New values of constants, by module and name
    constants: dict[str, dict[str, Any]] = field(default_factory=dict)


# Paths: a folder of two small images, one of each class; the four IDX files; a new file.
IMAGES, IDX, OUTPUT = "{images}", "{idx}", "{output}"
EPOCHS = {"EPOCHS": 2}
SMALLEST = {
    "servers": Smallest(
        (
            *("--megabytes", "1", "--clients", "1", "2", "--servers", "1", "2"),
            *("--seconds", "0.5", "--memory"),
        ),
        {"transports": {"LIMIT_BYTES": 10**6}},
    ),
    "servers one": Smallest(
        ("--megabytes", "1", "--clients", "1", "--servers", "1", "--seconds", "0.1"),
        {"transports": {"LIMIT_BYTES": 10**6}},
    ),
    "feeding": Smallest(constants={"feeding": {"ROWS": 200, "RUNS": 1}}),
    "tiling": Smallest(
        constants={
            "tiling": {"SPEC": TileSpec(64, angles=[0, 30]), "SIZE": (160, 120), "REPETITIONS": 1}
        }
    ),
    "large_images": Smallest(constants={"large_images": {"WIDTH": 512, "HEIGHTS": (512,)}}),
    "desktop_grid": Smallest(
        (
            *("--images", IMAGES, "--iterations", "1", "--workers", "2", "--train", "20"),
            *("--test", "10", "--tile", "32", "--angles", "1", "--quorum", "1"),
        )
    ),
    "training": Smallest(
        (
            *("--nets", "mlp", "--batches", "32", "--repetitions", "1", "--seeds", "1"),
            *("--parts", "epochs", "accuracy", "own-batch", "defaults"),
        ),
        {
            "epochs": {"TRIAL_STEPS": 2, "EPOCHS_OF_OURS": {"mlp": 1}},
            "curves": EPOCHS,
            "accuracy": EPOCHS,
            "own_batch": {**EPOCHS, "SIZES": (32,)},
            "defaults": {**EPOCHS, "SEEDS": (1,)},
        },
    ),
    "steps": Smallest(
        (
            *("--nets", "cnn", "--batches", "4", "--seconds", "0.01"),
            *("--repetitions", "1"),
        )
    ),
    "two_commits": Smallest(
        (
            *("--before", str(PROJECT), "--after", str(PROJECT), "--nets", "mlp"),
            *("--batches", "64", "--rows", "2000", "--epochs", "1", "--repetitions", "1"),
        )
    ),
    "training windows": Smallest(
        (
            *("--nets", "cnn", "--batches", "128", "--repetitions", "1"),
            *("--parts", "windows"),
        ),
        {"fashion": {"FEW_ROWS": 4_096}},
    ),
    "checkpoints": Smallest(
        ("--nets", "mlp", "wide", "--epochs", "2", "--every", "0.2", "--repetitions", "1"),
        {"checkpoints": {"WIDE": (64, 32), "BATCHES": {"mlp": 128, "wide": 128}}},
    ),
    "simulated_patterns": Smallest(
        ("--scale", "0.003"),
        {
            "simulated_patterns": {
                "CELLS": ((5, 20, None), (10, 10, (98.43, 98.64))),
                "SEEDS": 1,
                "GEM_WORKERS": (2,),
            }
        },
    ),
    "model_parallel": Smallest(
        constants={
            "model_parallel": {
                "ROWS": 256,
                "WIDTH": 8,
                "EPOCHS": 1,
            }
        }
    ),
    "placed": Smallest(
        constants={
            "placed": {"WIDTH": 8, "LAYERS": 4, "SIDE": 4, "CONVOLUTIONS": 4, "WORKERS": (2,)}
        }
    ),
    "fuzz": Smallest(("--inputs", "200")),
    # What grows in five seconds says nothing; what is left after them does.
    "soak": Smallest(
        ("--seconds", "5", "--workers", "8", "--limit", "10000"), {"soak": {"EVERY": 1.0}}
    ),
    "encodings": Smallest(
        (IMAGES, "--images", "1"),
        {"encodings": dict.fromkeys(("SPEC", "SMALL"), TileSpec(32, angles=[0]))},
    ),
    "tiling_job": Smallest(("--size", "600x500", "--angles", "1", "--images", "1", "--runs", "1")),
    "scale": Smallest(
        ("--images", "2", "--planned", "60", "--part", "nights"),
        {
            "scale": {
                "SPEC": TileSpec(64, angles=[0, 30], mode="inscribed", include_original=True),
                "SIZE": (160, 120),
            }
        },
    ),
    "studies.compare_trainers": Smallest(
        (
            *("--fashion-mnist", IDX, "--output", OUTPUT, "--rows", "200", "--epochs", "2"),
            *("--models", "mlp", "--batches", "16", "--seeds", "1", "--trainers", "local,DOWNPOUR"),
        )
    ),
    "studies.study_convolution_split": Smallest(("--kernels", "4:8,8:8", "--batch", "2")),
    "scale planning": Smallest(("--planned", "60", "--part", "planning")),
    "scale likeness": Smallest(("--planned", "60", "--part", "likeness")),
}


def run(name: str, folder: Path) -> int:
    """Run a benchmark at its smallest size; `folder` receives what it reads."""
    smallest, random = SMALLEST[name], np.random.default_rng(0)
    for module, constants in smallest.constants.items():
        changed = importlib.import_module(f"tests.benchmarks.{module}")
        for constant in constants:
            # One that is not there any more would be changed in vain.
            getattr(changed, constant)
        vars(changed).update(constants)
    paths = {
        IDX: _write_idx(folder / "idx", random),
        IMAGES: _write_images(folder / "images", random),
        OUTPUT: folder / "output",
    }
    os.environ[fashion.VARIABLE] = str(paths[IDX])
    words = [str(paths.get(word, word)) for word in smallest.words]
    module = importlib.import_module(f"tests.benchmarks.{name.partition(' ')[0]}")
    return int(module.main(*([words] if words else [])) or 0)


def _write_images(folder: Path, random: np.random.Generator) -> Path:
    from PIL import Image

    for number in range(8):
        path = folder / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 256, (80, 100), dtype=np.uint8)).save(path)
    return folder


def _write_idx(folder: Path, random: np.random.Generator) -> Path:
    """Write the four files of Fashion-MNIST with fewer images, which are noise."""
    folder.mkdir()
    for split, count in (("train", TRAINING_ROWS), ("test", TEST_ROWS)):
        images = random.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        labels = random.integers(0, 10, count).astype(np.uint8)
        for file, values in zip(fashion.FILES[split], (images, labels), strict=True):
            (folder / file).write_bytes(gzip.compress(idx_of(values), 1))
    return folder


def idx_of(values: NDArray[np.uint8]) -> bytes:
    """Return an array in the format of IDX."""
    head = bytes((0, 0, 8, values.ndim)) + np.array(values.shape, ">i4").tobytes()
    return head + values.tobytes()


def names() -> list[str]:
    """Return all benchmarks; each has a smallest size."""
    return sorted({*benchmarks.NAMES, *SMALLEST})


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="dkg-smallest-") as found:
        sys.exit(run(" ".join(sys.argv[1:]), Path(found)))
