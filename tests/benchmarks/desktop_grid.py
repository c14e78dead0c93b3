"""The protocol of a grid of desktops on a folder of images with one folder for each class.

Kurochkin (GRID'2021, table 4): in each of 18 iterations 5 nodes draw 6,000 training and 2,700 test
tiles each, train, and are averaged when 80 % of them are ready. His own classes and his net are not
published, so his accuracy cannot be measured again. What is measured here is the procedure, at the
size that two cores can do: accuracy by iteration, bytes and seconds of forming the sets, coverage
beside its formula, and how much better a model looks when its tests are of images that other local
sets have trained on (his protocol) than of images that nobody trains on.

``python -m tests.benchmarks.desktop_grid --images FOLDER``; by default the sample micrographs.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

SAMPLES = Path(__file__).parents[2] / "data_prep" / "samples"
SOURCE = {"iterations": 18, "nodes": 5, "train": 6000, "test": 2700, "accuracy": 0.792}
PROTOCOLS = {
    "held_out": "images that nobody trains on",
    "others": "images that this local set does not train on (the source)",
}


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the arguments."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=Path, default=SAMPLES, help="one folder for each class")
    parser.add_argument("--iterations", type=int, default=SOURCE["iterations"])
    parser.add_argument("--workers", type=int, default=SOURCE["nodes"])
    parser.add_argument("--train", type=int, default=600, help="tiles of a local training set")
    parser.add_argument("--test", type=int, default=270, help="tiles of a local test set")
    parser.add_argument("--tile", type=int, default=64)
    parser.add_argument("--angles", type=int, default=12, help="turns of each image")
    parser.add_argument("--batch", type=int, default=20)
    parser.add_argument("--quorum", type=float, default=0.8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--protocol", choices=PROTOCOLS, action="append", help="may be repeated; by default both"
    )
    return parser


def build_net(shape: tuple[int, ...], classes: int, seed: int) -> Any:
    """Return a small texture net, compiled."""
    import keras

    keras.utils.set_random_seed(seed)
    layers: list[Any] = [keras.Input(shape)]
    for filters in (16, 32, 64):
        layers += [
            keras.layers.Conv2D(filters, 3, strides=2, padding="same", activation="relu"),
        ]
    layers += [
        keras.layers.GlobalAveragePooling2D(),
        keras.layers.Dense(classes, activation="softmax"),
    ]
    model = keras.Sequential(layers)
    model.compile(
        keras.optimizers.Adam(2e-3), "sparse_categorical_crossentropy", metrics=["accuracy"]
    )
    return model


def run(arguments: argparse.Namespace, protocol: str, tiles: Any, validation: Any) -> Any:
    """Train by one protocol; return the trainer."""
    from distkeras_grid import AveragingTrainer, LocalSets

    sets = LocalSets(
        tiles,
        iterations=arguments.iterations,
        local_train=arguments.train,
        local_test=arguments.test,
        test_images=protocol,
        test_split="test",
    )
    field = tiles.store.field
    trainer = AveragingTrainer(
        build_net(field.shape, tiles.store.pool.classes, arguments.seed),
        num_workers=arguments.workers,
        quorum=arguments.quorum,
        batch_size=arguments.batch,
        features_col="image",
        progress=False,
    )
    trainer.train(sets, validation_data=validation, seed=arguments.seed)
    return trainer


def report(arguments: argparse.Namespace, protocol: str, trainer: Any) -> None:
    """Print what came of a run."""
    history = trainer.history
    frame, local = history.local_tests(), history.params["local_sets"]
    print(f"\nLocal tests of {PROTOCOLS[protocol]}")
    print("iteration  local test accuracy: mean  lowest  highest   center on the test split")
    for iteration, rows in frame.groupby("iteration"):
        center = history.history["val_accuracy"][int(iteration) - 1]
        accuracy = rows["accuracy"]
        print(
            f"{iteration:9d}  {accuracy.mean():26.3f}  {accuracy.min():6.3f}  "
            f"{accuracy.max():7.3f}  {center:25.3f}"
        )
    images = sum(record.bytes_down for record in history.records)
    print(
        f"coverage of {local['tiles']:,} tiles: expected {local['expected_coverage']:.4f}, drawn "
        f"{local['drawn_coverage']:.4f}, folded {local['folded_coverage']:.4f}; "
        f"{len(history.late)} of {len(frame)} windows came late"
    )
    print(
        f"a worker formed the sets of an iteration in {frame.read_seconds.median():.2f} s (median) "
        f"from {frame.bytes_read.median() / 1e6:.2f} MB that it read by itself; server to workers: "
        f"{images / 1e6:.2f} MB of weights in all, no tile; driver to each worker: "
        f"{local['plan_bytes'] / 1e3:.1f} kB that say where tiles are"
    )
    print(f"training took {history.training_seconds():.1f} s on {os.cpu_count()} cores")


def main(words: list[str]) -> None:
    """Run both protocols and print their figures beside those of the source."""
    arguments = build_parser().parse_args(words)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    from data_prep import TileSpec, catalogue_images, cut, index_tiles
    from distkeras_grid import build_session

    spark = build_session("benchmark", master=f"local[{arguments.workers},4]")
    spark.sparkContext.setLogLevel("ERROR")
    turns = [360 * n / arguments.angles for n in range(arguments.angles)]
    spec, options = TileSpec(arguments.tile, angles=turns), {"split": "0.7:0.3", "seed": 0}
    tiles = catalogue_images(str(arguments.images), spec, spark=spark, **options)
    index = index_tiles(str(arguments.images), spec, spark=spark, **options)
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/index"
        index.where("split = 'test' and angle = 0").write.parquet(path)
        validation = cut(spark.read.parquet(path))
        print(
            f"The source: {SOURCE['iterations']} iterations, {SOURCE['nodes']} nodes, "
            f"{SOURCE['train']} and {SOURCE['test']} tiles, 15 classes: accuracy "
            f"{SOURCE['accuracy']}. Here: {arguments.iterations} iterations, {arguments.workers} "
            f"workers, {arguments.train} and {arguments.test} tiles of {arguments.tile}x"
            f"{arguments.tile} at {arguments.angles} angles, {tiles.store.pool.classes} classes "
            f"of {len(tiles.store.files)} images in {arguments.images}, quorum {arguments.quorum}"
        )
        for protocol in arguments.protocol or PROTOCOLS:
            report(arguments, protocol, run(arguments, protocol, tiles, validation))
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1:])
