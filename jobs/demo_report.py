"""The demo's folder, its pictures, and the page that shows them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from data_prep import TileSpec, iter_tiles
from distkeras_grid import plots
from distkeras_grid.errors import OutputExistsError, StorageError
from distkeras_grid.pages import Section, write_page

if TYPE_CHECKING:
    from demo_training import Comparison
    from matplotlib.figure import Figure

    from distkeras_grid.evaluation.levels import Evaluation

SHOWN_ANGLES = (0.0, 30.0, 60.0)
TILES_PER_ANGLE = 4
# Written first: by it a folder is known as one that the demo may delete.
MARKER = ".distkeras_grid-demo"


def new_folder(folder: Path) -> None:
    """Make the report's folder, in place of one that the demo wrote.

    Parameters
    ----------
    folder : pathlib.Path
        Missing, empty, or written by the demo.

    Raises
    ------
    OutputExistsError
        If anything else is there; it is not touched.
    StorageError
        If the folder cannot be made.
    """
    try:
        if (folder / MARKER).is_file():
            shutil.rmtree(folder)
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise OutputExistsError(
                f"{folder} is not empty and not a report of the demo, so it is not replaced. "
                "Choose another folder by --output."
            )
        (folder / MARKER).write_text("The demo deletes this folder to replace it.\n")
    except OSError as error:
        raise StorageError(f"The demo cannot write to {folder}: {error}.") from error


def write_report(
    folder: Path, samples: Path, spec: TileSpec, manifest: dict[str, Any], comparison: Comparison
) -> Path:
    """Draw all pictures into a folder and write the page beside them; return the page."""
    history = comparison.distributed.history
    by_seconds = {r.name: r.by_seconds for r in comparison.results}
    by_samples = {r.name: r.by_samples for r in comparison.results}
    source = sorted(samples.glob("*/*.png"))[0]
    classes = comparison.tiles.schema["image"].metadata["distkeras_grid"]["classes"]
    sections = [
        Section("What ran", text=describe(manifest), rows=result_rows(comparison)),
        picture(
            folder, "tiles.png", tile_sheet(comparison, len(classes)), "Tiles",
            "Tiles of every class at all angles, as they are stored.",
        ),
        picture(
            folder, "overlap.png", overlap(source, spec), "Overlap and rotation",
            f"Where some tiles of {source.name} lie on it. Each lies wholly inside.",
        ),
        picture(
            folder, "accuracy-by-time.png",
            plots.curves(by_seconds, "seconds", "val_accuracy"), "Accuracy over time",
            "On split validation after each epoch. Evaluation runs beside the workers, on the "
            "same cores; for fit its time is taken out. Chance is one in three.",
        ),
        picture(
            folder, "accuracy-by-samples.png",
            plots.curves(by_samples, "samples", "val_accuracy"), "Accuracy over samples", "",
        ),
        picture(
            folder, "confusion.png",
            plots.confusion_matrix(comparison.evaluation.level("row").confusion, classes),
            "Confusion matrix", "The net of the two workers on split test.",
        ),
        Section(
            "By class and by image", rows=class_rows(comparison.evaluation),
            text="The net of the two workers on split test. All tiles of an image together name "
            "its class, too. In brackets are 95 % intervals from how whole images differ: "
            f"there are {comparison.evaluation.clusters}.",
        ),
        picture(
            folder, "staleness.png", plots.staleness_histogram(history), "Staleness",
            "How many commits of the other worker were folded while a window was trained.",
        ),
        picture(
            folder, "timeline.png", plots.timeline(history), "Workers over time",
            "Each bar is a window of batches; gaps are exchanges with the parameter server.",
        ),
    ]  # fmt: skip
    return write_page(folder, "distkeras_grid: from micrographs to a trained net", sections)


def picture(folder: Path, name: str, figure: Figure, heading: str, text: str) -> Section:
    """Save a figure and return its section."""
    figure.savefig(folder / name)
    return Section(heading, text=text, image=name)


def describe(manifest: dict[str, Any]) -> str:
    """Return what was tiled, in words."""
    counts = {split: sum(classes.values()) for split, classes in manifest["counts"].items()}
    told = ", ".join(f"{tiles:,} of split {split}" for split, tiles in counts.items())
    return f"{len(manifest['sources'])} micrographs gave {sum(counts.values()):,} tiles: {told}."


def result_rows(comparison: Comparison) -> list[list[object]]:
    """Return the table of the three ways."""
    rows: list[list[object]] = [["run", "training s", "start-up s", "test accuracy"]]
    rows += [
        [r.name, f"{r.seconds:.1f}", f"{r.start_up:.1f}", f"{r.accuracy:.3f}"]
        for r in comparison.results
    ]
    return rows


def class_rows(evaluation: Evaluation) -> list[list[object]]:
    """Return the table of the figures by class, for tiles and for images."""
    rows: list[list[object]] = [["class", "of", "count", "precision", "recall", "accuracy"]]
    for name, unit in (("row", "tiles"), ("source", "images")):
        level = evaluation.level(name)
        rows += [
            [each.name, unit, each.count, str(each.precision), str(each.recall), ""]
            for each in level.classes
        ]
        rows.append(["all", unit, level.count, "", "", str(level.accuracy)])
    return rows


def tile_sheet(comparison: Comparison, classes: int) -> Figure:
    """Show one tile of each class at each angle."""
    frame = comparison.tiles
    shape = frame.schema["image"].metadata["distkeras_grid"]["shape"]
    rows = (
        frame.select("image", "label", "label_name", "angle", "source")
        .orderBy("label", "source", "angle")
        .dropDuplicates(["label", "angle"])
        .orderBy("label", "angle")
        .collect()
    )
    tiles = [np.frombuffer(row.image, np.uint8).reshape(shape) for row in rows]
    titles = [f"{row.label_name}, {row.angle:g}°" for row in rows]
    return plots.contact_sheet(tiles, titles, f"{classes} classes, tiles of {shape[1]} pixels")


def overlap(source: Path, spec: TileSpec) -> Figure:
    """Outline some tiles of each angle on their source."""
    pixels = np.asarray(Image.open(source).convert("L"))[..., None]
    outlines: dict[str, list[list[tuple[float, float]]]] = {}
    shown = TileSpec(spec.tile, spec.overlap, SHOWN_ANGLES, spec.mode, spec.interpolation)
    for tile in iter_tiles(pixels, shown):
        corners = outlines.setdefault(f"{tile.angle:g}°", [])
        if len(corners) < TILES_PER_ANGLE:
            corners.append(tile.corners())
    return plots.overlap_picture(pixels, outlines, f"Tiles of {source.name}")
