"""Micrographs to tiles, a training by two workers, and a page with the result (``make demo``).

Which micrographs are out of focus? Each of the shipped micrographs is in each of three classes: as
it is, blurred, and moved during the exposure. So the label of every image is known exactly. The
three images of a micrograph are a group, which the split keeps together.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import cv2
import numpy as np
from PIL import Image

from data_prep import TileSpec, TilingSettings, tile_images
from distkeras_grid import AccuracyEvaluator, AveragingTrainer, ModelPredictor, plots, read_tiles
from distkeras_grid.cli.exit_codes import run_command
from distkeras_grid.cli.spinner import spinner, start_spark
from distkeras_grid.evaluation.text import format_figure
from distkeras_grid.pages import format_document, format_table
from distkeras_grid.signals import terminable

if TYPE_CHECKING:
    import keras
    from matplotlib.figure import Figure
    from numpy.typing import NDArray
    from pyspark.sql import DataFrame

    from distkeras_grid.evaluation.classification import Evaluation

SAMPLES = Path(__file__).resolve().parent.parent / "data_prep" / "samples"
CLASSES = ("in_focus", "out_of_focus", "moved")
#: The images of one micrograph have its name.
GROUP = r"(?P<group>[^/]+)\.png$"
SPEC = TileSpec(tile=96, overlap=0.5, angles=(0, 90))
BATCH, WORKERS, SEED = 32, 2, 1
TILES_OF_A_CLASS = 6


def write_micrographs(folder: Path) -> None:
    """Write ``folder/CLASS/NAME.png`` for each sample."""
    random = np.random.default_rng(SEED)
    for name in CLASSES:
        (folder / name).mkdir(parents=True, exist_ok=True)
        for path in sorted(SAMPLES.glob("*/*.png")):
            with Image.open(path) as image:
                pixels = np.asarray(image.convert("L"))
            spoilt = Image.fromarray(spoiled(pixels, name, random))
            # Smaller files would cost seconds.
            spoilt.save(folder / name / path.name, compress_level=1)


def spoiled(pixels: NDArray[np.uint8], name: str, random: np.random.Generator) -> NDArray[np.uint8]:
    """Return an image of a class."""
    if name == "in_focus":
        return pixels
    image: Any = pixels.astype(np.float32)
    if name == "out_of_focus":
        image = cv2.GaussianBlur(image, None, sigmaX=random.uniform(1.5, 2.5))
    else:
        length = int(random.integers(8, 15))
        image = cv2.blur(image, (length, 1) if random.random() < 0.5 else (1, length))
    # The noise of a camera, which the blur has taken away with the details.
    image += random.normal(0, 1, image.shape)
    pixels = np.clip(image, 0, 255).round().astype(np.uint8)
    return pixels


def focus_net(shape: tuple[int, ...], steps: int) -> keras.Model:
    """Return a small convolutional net for textures: what matters is not where it lies."""
    import keras

    keras.utils.set_random_seed(SEED)
    layers = keras.layers
    # One group without weights: each tile loses its brightness and contrast, which tell one lamp
    # from another and not whether the image is sharp.
    net = keras.Sequential(
        [keras.Input(shape), layers.GroupNormalization(1, center=False, scale=False)]
    )
    for filters, width in ((12, 5), (16, 3), (24, 3)):
        net.add(layers.Conv2D(filters, width, strides=2, use_bias=False))
        # Keras' momentum of 0.99 lags behind for the first thousand batches, all of this demo.
        net.add(layers.BatchNormalization(momentum=0.9))
        net.add(layers.ReLU())
    net.add(layers.GlobalAveragePooling2D())
    net.add(layers.Dense(len(CLASSES), activation="softmax"))
    schedule = keras.optimizers.schedules.CosineDecay(3e-3, steps)
    net.compile(
        keras.optimizers.Adam(schedule), "sparse_categorical_crossentropy", metrics=["accuracy"]
    )
    return net


def run(folder: Path, epochs: int) -> None:
    """Tile, train and write the page into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    spark = start_spark("distkeras_grid demo", f"local[{WORKERS},4]")
    images, tiles = str(folder / "micrographs"), str(folder / "tiles")
    write_micrographs(Path(images))
    settings = TilingSettings(
        *(images, tiles, SPEC),
        split="0.5:0.15:0.35",
        seed=SEED,
        group=GROUP,
        # Images of one place are known by their names.
        near_duplicates="off",
        overwrite=True,
    )
    tile_images(settings, spark=spark, say=print)
    train, validation, test = read_tiles(tiles, splits=("train", "validation", "test"))
    with spinner("loading TensorFlow and Keras"):
        # Two workers with half of the batch take as many steps as one.
        net = focus_net((SPEC.tile, SPEC.tile, 1), epochs * math.ceil(train.count() / BATCH))
    trainer = AveragingTrainer(
        net,
        num_workers=WORKERS,
        batch_size=BATCH // WORKERS,
        num_epoch=epochs,
        features_col="image",
    )
    model = trainer.train(train, validation_data=validation, seed=SEED)
    with spinner("predicting"):
        evaluation = AccuracyEvaluator().report(ModelPredictor(model, "image").predict(test))
    accuracy = {"validation tiles": trainer.history.points("val_accuracy", "seconds")}
    pictures = {
        "What the net learns from": tile_sheet(train),
        "Accuracy after each epoch": plots.curves(accuracy, metric="val_accuracy"),
        "What each worker did": plots.timeline(trainer.history),
    }
    print(evaluation)
    print(f"\nreport: {write_page(folder, evaluation, pictures)}")


def tile_sheet(tiles: DataFrame) -> Figure:
    """Show tiles of each class, from different images."""
    rows = tiles.where("angle = 0").dropDuplicates(["source"]).orderBy("label", "source").collect()
    by_class = [[row for row in rows if row.label == label] for label in range(len(CLASSES))]
    shown = [row for of_class in by_class for row in of_class[:TILES_OF_A_CLASS]]
    images = [np.frombuffer(row.image, np.uint8).reshape(SPEC.tile, SPEC.tile) for row in shown]
    return plots.contact_sheet(images, [row.label_name for row in shown])


def write_page(folder: Path, evaluation: Evaluation, pictures: dict[str, Figure]) -> Path:
    """Write the figures by class and the pictures as ``index.html``."""
    rows: list[list[object]] = [["class", "of", "count", "precision", "recall"]]
    for name, unit in (("source", "images"), ("row", "tiles")):
        rows += [
            [each.name, unit, each.count, *map(format_figure, (each.precision, each.recall))]
            for each in evaluation.level(name).classes
        ]
    parts = ["<p>On micrographs that the training has not seen.</p>", format_table(rows)]
    for number, (heading, figure) in enumerate(pictures.items()):
        figure.savefig(folder / f"{number}.png")
        parts.append(f"<h2>{escape(heading)}</h2>")
        parts.append(f'<img src="{number}.png" alt="{escape(heading)}">')
    page = folder / "index.html"
    title = "Which micrographs are out of focus?"
    page.write_text(format_document(title, "\n".join(parts)), encoding="utf-8")
    return page


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("demo-report"),
        help="folder of the page, whose index.html is replaced (demo-report)",
    )
    parser.add_argument("--epochs", type=int, default=5, help="passes over the tiles (5)")
    flags = parser.parse_args()
    with terminable():
        code = run_command(lambda: run(flags.output.resolve(), flags.epochs))
    sys.exit(code)
