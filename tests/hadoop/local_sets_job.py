"""A job on images of HDFS: local sets of their tiles, and of tiles that nobody has written."""

from __future__ import annotations

import json
import sys
from typing import Any

from data_prep import (
    TileSpec,
    TilingSettings,
    cut,
    index_tiles,
    tile_images,
)
from distkeras_grid import ADAG, AveragingTrainer, LocalSets
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


def tell(**told: Any) -> None:
    sys.stdout.write(json.dumps(told) + "\n")
    sys.stdout.flush()


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
    tell(
        name=name,
        samples=trainer.history.samples,
        sets=[(each.train, each.test) for each in records],
        read=sorted({place for each in records for place in each.bytes_read}),
        failures=sum(sum(each.failures.values()) for each in records),
    )


def train_on_cut_tiles(index: Any) -> None:
    train, held_out = (cut(index.where(f"split = '{name}'")) for name in ("train", "validation"))
    trainer = ADAG(net(), communication_window=2, **ARGUMENTS)
    trainer.train(train, validation_data=held_out, seed=4)
    tell(
        name="cut",
        samples=trainer.history.samples,
        rows=index.where("split = 'train'").count(),
        validated=sorted(trainer.history.history),
    )


def main(images: str, tiles: str) -> int:
    build_session("local sets")
    manifest = tile_images(TilingSettings(images, tiles, SPEC, **SPLIT))
    tell(name="tiled", train=sum(manifest["counts"]["train"].values()))
    train_on_sets(tiles, "tiles")
    index = index_tiles(images, SPEC, **SPLIT)
    cut(index).write.parquet(f"{tiles}-index")
    train_on_sets(f"{tiles}-index", "images")
    train_on_cut_tiles(index)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
