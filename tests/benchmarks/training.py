"""Two Spark workers on two cores against ``keras.Model.fit`` with all cores, on Fashion-MNIST.

All times leave start-up out on both sides; it is printed apart. Sides take turns, medians are
quoted. ``fit`` gets float32 arrays in memory and the faster of TensorFlow's two sets of kernels;
the workers read raw uint8 from Parquet through Spark.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from importlib import metadata

from tests.benchmarks import fashion
from tests.benchmarks.accuracy import measure_accuracy
from tests.benchmarks.epochs import measure_epochs, other_backends
from tests.benchmarks.spark_runs import MASTER, Cluster
from tests.benchmarks.tables import processor_name

PARTS = ("epochs", "accuracy")
BATCHES = (32, 128)


def main(arguments: Sequence[str] = ()) -> None:
    """Print the tables."""
    options = _parser().parse_args(arguments)
    folder, advice = fashion.find_folder()
    if folder is None:
        print(f"Training benchmark left out: {advice}.")
        return
    # Before TensorFlow is imported here, where nothing is measured, and inherited by the workers.
    os.environ.update({"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"})
    packages = ("keras", "tensorflow_cpu", *other_backends(), "pyspark")
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in packages)
    load = ", ".join(f"{value:.2f}" for value in os.getloadavg())
    print(f"{processor_name()}, {os.cpu_count()} cores, load before the start {load}; {versions}")
    began = time.monotonic()
    with Cluster(folder) as cluster:
        print(f"Spark session {MASTER} up in {cluster.start_seconds:.1f} s")
        for net in options.nets:
            for batch in options.batches:
                if "epochs" in options.parts:
                    measure_epochs(net, batch, folder, cluster, options.repetitions)
                if "accuracy" in options.parts:
                    measure_accuracy(net, batch, folder, cluster, options.seeds)
    print(f"\nTraining benchmark: {(time.monotonic() - began) / 60:.1f} min")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--nets", nargs="+", choices=("mlp", "cnn"), default=("mlp", "cnn"))
    parser.add_argument("--batches", nargs="+", type=int, default=BATCHES, help="of fit")
    parser.add_argument("--repetitions", type=int, default=3, help="of the epoch times")
    parser.add_argument("--seeds", type=int, default=5, help="of the times to accuracy")
    return parser


if __name__ == "__main__":
    import sys

    main(sys.argv[1:])
