"""A job on images of HDFS: local sets of their tiles, written or not."""

from __future__ import annotations

import json
import sys
from typing import Any

from data_prep import TileSpec, TilingSettings, cut, index_tiles, tile_images
from distkeras_grid import AveragingTrainer, LocalSets
from distkeras_grid.spark.session import build_session

SPEC = TileSpec(64, overlap=0, angles=[0, 30])
SPLIT = {"split": "0.6:0.2:0.2", "seed": 0}
SETS = {"iterations": 2, "local_train": 24, "local_test": 12}
ARGUMENTS: dict[str, Any] = {
    "num_workers": 2,
    "batch_size": 8,
    "features_col": "image",
    "progress": False,
}


def net() -> Any:
    import keras

    keras.utils.set_random_seed(1)
    layers = [keras.Input((64, 64, 1)), keras.layers.AveragePooling2D(8), keras.layers.Flatten()]
    model = keras.Sequential([*layers, keras.layers.Dense(3, activation="softmax")])
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def train_on_sets(data: Any, name: str) -> None:
    trainer = AveragingTrainer(net(), **ARGUMENTS)
    trainer.train(LocalSets(data, test_split="test", **SETS), seed=4)
    records = [each.local for each in trainer.history.local_sets]
    record = {
        "name": name,
        "samples": trainer.history.samples,
        "sets": [(each.train, each.test) for each in records],
        "read": sorted({place for each in records for place in each.bytes_read}),
        "failures": sum(sum(each.failures.values()) for each in records),
    }
    sys.stdout.write(json.dumps(record) + "\n")
    sys.stdout.flush()


def main(images: str, tiles: str) -> int:
    build_session("local sets")
    tile_images(TilingSettings(images, tiles, SPEC, **SPLIT))
    train_on_sets(tiles, "tiles")
    index = index_tiles(images, SPEC, **SPLIT)
    cut(index).write.parquet(f"{tiles}-index")
    train_on_sets(f"{tiles}-index", "images")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
