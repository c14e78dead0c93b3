"""The demo's folder, its pictures, and the page that shows them."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from data_prep import TileSpec, iter_tiles
from distkeras_grid import plots
from distkeras_grid.errors import OutputExistsError, StorageError
from distkeras_grid.pages import PageSection, write_page
from distkeras_grid.plots.style import PALETTE, figure_class

if TYPE_CHECKING:
    import keras
    from demo_micrographs import Tilted
    from demo_training import Findings, Killed
    from matplotlib.figure import Figure

    from distkeras_grid.evaluation.classification import Evaluation

TILES_OF_A_CLASS = 6
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
    folder: Path, spec: TileSpec, manifest: dict[str, Any], findings: Findings, tilted: list[Tilted]
) -> Path:
    """Draw all pictures into a folder and write the page beside them; return the page."""
    classes = findings.tiles.schema["image"].metadata["distkeras_grid"]["classes"]
    names = [name.replace("_", " ") for name in classes]
    curves = {result.name: result.curve for result in findings.results}
    sections = [
        PageSection("Which micrographs are out of focus?", text=headline(manifest, findings)),
        picture(
            folder, "tiles.png", tile_sheet(findings, names), "What the net learns from",
            "Tiles of 96 pixels from each class, as Spark has cut and stored them.",
        ),
        picture(
            folder, "maps.png", focus_maps(findings.model, spec, tilted, classes), "On new images",
            "Three micrographs that were set aside. Their right part is out of focus, as on a "
            "tilted slide; between the dashed lines the focus fades. Every tile is predicted by "
            "itself, and a pixel has the mean of the tiles that cover it.",
        ),
        PageSection(
            "By image and by tile", rows=class_rows(findings.evaluation, names),
            text="On micrographs that no run has seen, looked at once. All tiles of an image "
            "together name its class. In brackets are 95 % intervals from how whole micrographs "
            f"differ: there are {findings.evaluation.clusters}.",
        ),
        picture(
            folder, "accuracy-by-time.png",
            plots.curves(curves, "seconds", "val_accuracy"), "How fast",
            speed(findings),
        ),
        picture(
            folder, "killed.png", plots.timeline(findings.killed.history),
            "When a worker is killed", exactness(findings.killed),
        ),
    ]  # fmt: skip
    return write_page(folder, "distkeras_grid: from micrographs to a trained net", sections)


def picture(folder: Path, name: str, figure: Figure, heading: str, text: str) -> PageSection:
    """Save a figure and return its section."""
    figure.savefig(folder / name)
    return PageSection(heading, text=text, image=name)


def correct(evaluation: Evaluation, level: str) -> str:
    """Return how many of a level are right, such as ``14 of 15 (93 %)``."""
    scores = evaluation.level(level)
    right = int(np.trace(np.asarray(scores.confusion)))
    return f"{right:,} of {scores.count:,} ({100 * right / scores.count:.0f} %)"


def headline(manifest: dict[str, Any], findings: Findings) -> str:
    """Return the result in words, and what it was obtained from."""
    counts = {split: sum(classes.values()) for split, classes in manifest["counts"].items()}
    sizes = ", ".join(f"{tiles:,} for {split}" for split, tiles in counts.items())
    return (
        f"The net names {correct(findings.evaluation, 'source')} images of micrographs that it has "
        f"never seen as in focus, out of focus or moved; by chance it would be one in three. "
        f"Of single tiles it names {correct(findings.evaluation, 'row')}.\n\n"
        f"{len(manifest['sources'])} images, each micrograph of rock as it is, blurred by a disk, "
        f"and blurred along a line, gave {sum(counts.values()):,} overlapping, rotated tiles: "
        f"{sizes}. All tiles of a micrograph are in the same part."
    )


def speed(findings: Findings) -> str:
    """Return what the curves say, in words: times until the lower of both best accuracies."""
    target = min(max(accuracy for _, accuracy in each.curve) for each in findings.results)
    reached = [
        next(seconds for seconds, accuracy in each.curve if accuracy >= target)
        for each in findings.results
    ]
    lines = [
        f"{each.name}: accuracy {target:.3f} after {seconds:.1f} s of training "
        f"({each.seconds:.1f} s in all, after a start of {each.start_up:.1f} s)."
        for each, seconds in zip(findings.results, reached, strict=True)
    ]
    return "\n".join(
        ["Accuracy on the validation tiles after each epoch. Both saw the same tiles.", *lines]
    )


def exactness(killed: Killed) -> str:
    """Return what became of the run whose worker was killed."""
    return (
        "The same training, shorter; after an epoch the process of one worker was killed. Spark "
        "started it again, and the parameter server told it with which batch to go on. The white "
        f"gap is what that took. Rows trained: {killed.rows:,} of {killed.expected:,}, so none was "
        f"lost and none counted twice. Accuracy on the validation tiles: {killed.accuracy:.3f}."
    )


def class_rows(evaluation: Evaluation, names: Sequence[str]) -> list[list[object]]:
    """Return the table of the figures by class, for images and for tiles."""
    rows: list[list[object]] = [["class", "of", "count", "precision", "recall", "accuracy"]]
    for name, unit in (("source", "images"), ("row", "tiles")):
        level = evaluation.level(name)
        rows += [
            [shown, unit, each.count, str(each.precision), str(each.recall), ""]
            for shown, each in zip(names, level.classes, strict=True)
        ]
        rows.append(["all", unit, level.count, "", "", str(level.accuracy)])
    return rows


def tile_sheet(findings: Findings, names: Sequence[str]) -> Figure:
    """Show tiles of each class, from different images."""
    frame = findings.tiles
    shape = frame.schema["image"].metadata["distkeras_grid"]["shape"]
    rows = (
        frame.where("angle = 0")
        .select("image", "label", "source")
        .dropDuplicates(["source"])
        .orderBy("label", "source")
        .collect()
    )
    shown = [
        row
        for label in range(len(names))
        for row in [row for row in rows if row.label == label][:TILES_OF_A_CLASS]
    ]
    tiles = [np.frombuffer(row.image, np.uint8).reshape(shape) for row in shown]
    return plots.contact_sheet(tiles, [names[row.label] for row in shown])


def focus_maps(
    model: keras.Model, spec: TileSpec, tilted: list[Tilted], classes: Sequence[str]
) -> Figure:
    """Show images, and below them what the net says of each place."""
    figure = figure_class()(figsize=(12, 8), dpi=100, layout="constrained")
    grid = figure.subplots(2, len(tilted), squeeze=False)
    for (above, below), each in zip(grid.T, tilted, strict=True):
        sharp = probability_map(model, spec, each.pixels)[..., classes.index("in_focus")]
        for axes in (above, below):
            axes.imshow(each.pixels, cmap="gray", vmin=0, vmax=255)
            axes.set_axis_off()
        drawn = below.imshow(sharp, cmap="coolwarm_r", vmin=0, vmax=1, alpha=0.6)
        for column in (each.sharp_until, each.blurred_from):
            below.axvline(column, color=PALETTE[-1], linestyle="--")
        above.set_title(each.name, fontsize=11)
    figure.colorbar(drawn, ax=grid[1], orientation="horizontal", label="probability: in focus")
    return figure


def probability_map(model: keras.Model, spec: TileSpec, pixels: np.ndarray) -> np.ndarray:
    """Return the mean prediction of the tiles that cover each pixel; NaN where there is none.

    Returns
    -------
    array [height, width, classes]
    """
    dense = TileSpec(spec.tile, 0.875)
    tiles = list(iter_tiles(pixels[..., None], dense, [0.0]))
    predicted = model.predict(
        np.stack([tile.pixels for tile in tiles]).astype(np.float32) / 255, verbose=0
    )
    total = np.zeros((*pixels.shape, predicted.shape[1]))
    count = np.zeros((*pixels.shape, 1))
    for tile, probabilities in zip(tiles, predicted, strict=True):
        place = np.s_[tile.y : tile.y + spec.tile, tile.x : tile.x + spec.tile]
        total[place] += probabilities
        count[place] += 1
    return np.divide(total, count, out=np.full_like(total, np.nan), where=count > 0)
