"""``distkeras-grid tile``: images in, a data set of tiles out."""

from __future__ import annotations

import argparse

from data_prep.dataset.manifest import DataSet
from data_prep.dataset.settings import CHOICES, TilingSettings, parse_angles, parse_overlap
from data_prep.dataset.update import plan_tiles, update_tiles
from data_prep.geometry.filters import MEASURED
from data_prep.geometry.grid import EDGES, INTERPOLATIONS, MODES, TileSpec
from data_prep.images.open_image import MAX_PIXELS
from data_prep.spark.driver import tiles_kind
from distkeras_grid.cli import preflight
from distkeras_grid.cli.console import output, print_result, report
from distkeras_grid.cli.exit_codes import ExitCode, main_of
from distkeras_grid.cli.parser import add_master_flag, verb_parser
from distkeras_grid.cli.spinner import start_spark

COUNTS = ("new", "changed", "unchanged", "relabelled", "copies", "removed")

DESCRIPTION = """\
Cut all images below a folder into square tiles, overlapping and rotated, and write them as Parquet:
folders shard=N-RUN, each with one folder for each split, and _versions/N.json, which lists them.

Images, not tiles, are divided into train, validation and test, class by class, so that no part of a
training image is in the test set. Before anything is written, the command prints the number of
tiles, their size and the free space. The output, or the night that --update adds to it, appears
complete or not at all: if the command is killed, run it again.
"""
EXAMPLES = """\
examples:
  each class in a folder of its own:
    distkeras-grid tile --input hdfs:///raw --output hdfs:///tiles --angles 0:360:45
  the class from names such as 065_lentils.jpg, the specimen from the folder:
    distkeras-grid tile --input raw --output tiles \\
        --labels 'regex:_(?P<label>[a-z]+)' --group '^(?P<group>[^/]+)/'
  every night, only what is new or has changed (jobs/schedule/README.md):
    distkeras-grid tile --input hdfs:///raw --output hdfs:///tiles --update
  few, small tiles, without rotation:
    distkeras-grid tile --input raw --output tiles --tile 128 --overlap 0 --angles 0
"""


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = verb_parser("tile", DESCRIPTION, EXAMPLES)
    _add_paths(parser)
    _add_cutting(parser)
    _add_labels(parser)
    return parser


def _add_paths(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("where").add_argument
    add("--input", required=True, metavar="URI", help="folder of images, with its subfolders")
    add("--output", required=True, metavar="URI", help="folder to write, new or empty")
    add(
        "--overwrite",
        action="store_true",
        help="replace the tiles in --output when the new ones are complete; nothing else is "
        "replaced",
    )
    add(
        "--update",
        action="store_true",
        help="add to --output only what is new or has changed in --input. Images that cannot be "
        "read are left out, listed, and tried again next time (exit code 7)",
    )
    add(
        "--prune",
        action="store_true",
        help="with --update: also delete the tiles of images that do not exist any more",
    )
    add(
        "--new-classes",
        action="store_true",
        help="with --update: take images of classes that the data set does not have; they get the "
        "next numbers. Models that were trained before have no output for them",
    )
    add(
        "--keep-versions",
        metavar="N|Nd",
        help="versions that can be read though tiles were replaced since: the newest N, the "
        "present one included, or those of N days, such as 30d; former ones take the space of the "
        "replaced tiles (7d)",
    )
    add("--glob", metavar="PATTERN", help="file names to tile (all PNG, JPEG, TIFF and BMP)")
    add(
        "--on-error",
        choices=CHOICES["on_error"],
        help="what happens if an image cannot be tiled: fail: the command ends before anything is "
        "written; skip: the image is left out, listed, and tried again next time, with exit code "
        "7 (fail; with --update: skip)",
    )
    add(
        "--plan",
        action="store_true",
        help="print tiles, classes, splits, size and free space, and stop",
    )
    add(
        "--report-images",
        type=int,
        default=300,
        metavar="N",
        help="images of a run that its report shows with their tiles (300)",
    )
    add_master_flag(parser)


def _add_cutting(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("how").add_argument
    add("--tile", type=int, default=256, metavar="PIXELS", help="side of a tile (256)")
    add(
        "--overlap",
        type=parse_overlap,
        default=0.5,
        metavar="PART|PIXELS",
        help="what a tile repeats of the next: a fraction such as 0.5, or whole pixels such as 64; "
        "negative numbers leave gaps (0.5)",
    )
    add(
        "--angles",
        default="0:360:5",
        metavar="START:STOP:STEP",
        help="rotations in degrees, counter-clockwise, from START to before STOP, or numbers such "
        "as 0,90. Every image is stored once for each angle (0:360:5, which is 72 angles)",
    )
    add(
        "--mode",
        choices=MODES,
        default="inside",
        help="inside: every tile that fits in the rotated image; inscribed: fewer tiles, from an "
        "inscribed rectangle no larger than the image (inside)",
    )
    add(
        "--edge",
        choices=EDGES,
        default="drop",
        help="if tiles do not divide the image: drop the rest, shift the last tiles back, or pad "
        "them with black (drop)",
    )
    add(
        "--include-original",
        action="store_true",
        help="store the tiles of the unrotated image a second time",
    )
    add(
        "--interpolation",
        choices=INTERPOLATIONS,
        default="cubic",
        help="how rotated pixels are computed (cubic)",
    )
    add(
        "--channels",
        choices=CHOICES["channels"],
        default="auto",
        help="1: convert all images to gray; 3: to color; auto: keep them as they are, if all are "
        "alike (auto)",
    )
    add("--page", type=int, metavar="N", help="page of files that have several, from 0")
    add(
        "--channel",
        metavar="N|NAME",
        help="channel of files that have several: a number from 0, a name, or three numbers such "
        "as 2,1,0 for red, green and blue",
    )
    add(
        "--z",
        metavar="N|max|mean",
        help="focal plane of files that have several, from 0, or the maximum or mean of all",
    )
    add(
        "--bits",
        type=int,
        metavar="8-16",
        help="significant bits of images of 16 bits, such as 12 (measured: the fewest of 8, 10, "
        "12, 14 and 16 that hold all values)",
    )
    add(
        "--pixel-size",
        metavar="LENGTH",
        help="resample each image to pixels of this size, such as 0.5um, before it is cut",
    )
    add(
        "--source-pixel-size",
        metavar="LENGTH",
        help="pixel size of all images, in place of what their files state",
    )
    add(
        "--zones",
        metavar="FILE",
        help="zones that no tile touches: FILE.csv with the columns file, left, top, right, bottom "
        "in pixels, or FILE.geojson with polygons that have a property file; kind include: every "
        "tile lies in such a zone",
    )
    add(
        "--bottom-strip",
        type=int,
        default=0,
        metavar="PIXELS",
        help="rows at the bottom of each image that no tile touches, such as a data bar (0)",
    )
    add(
        "--max-pixels",
        type=int,
        default=MAX_PIXELS,
        metavar="N",
        help="refuse larger images that can only be decoded as a whole; tiled and striped TIFF is "
        f"read part by part, and may be larger ({MAX_PIXELS})",
    )
    add(
        "--normalise",
        metavar="METHOD",
        help="spread the values of each image over the whole range: min-max, percentile:LOW:HIGH "
        "or standard, which takes three standard deviations on each side of the mean; or macenko: "
        "bring the stains of histology to those of a reference",
    )
    add(
        "--keep",
        metavar="CONDITIONS",
        help="store only tiles that meet all conditions, such as 'bg_fraction<0.9,focus>=0.01'; "
        f"columns: {', '.join(MEASURED)}",
    )
    add(
        "--encoding",
        choices=CHOICES["encoding"],
        default="raw",
        help="raw: lossless, zstd; difference: lossless and smaller, but other programs must add "
        "up the rows; png: lossless image files; jpeg: smallest image files, lossy; only the last "
        "two are images to Hugging Face datasets (raw)",
    )
    add("--quality", type=int, default=90, metavar="1-100", help="quality of jpeg (90)")


def _add_labels(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("classes and splits").add_argument
    add(
        "--labels",
        default="folder",
        metavar="RULE",
        help="folder: the name of an image's folder; folder:N: the Nth folder below the input; "
        "regex:PATTERN: the group (?P<label>...) in its file name; path:PATTERN: in its path; "
        "FILE.csv: columns file and label, optionally split and group (folder)",
    )
    add(
        "--split",
        default="0.8:0.1:0.1",
        metavar="SHARES",
        help="shares of train:validation:test, of train:test, or 1 for train alone; not used if "
        "FILE.csv has a column split (0.8:0.1:0.1)",
    )
    add("--seed", type=int, default=0, metavar="N", help="seed of the split (0)")
    add(
        "--allow-empty",
        action="store_true",
        help="accept a split without tiles of some class, which is refused otherwise",
    )
    add(
        "--near-duplicates",
        choices=CHOICES["near_duplicates"],
        default="join",
        help="images that show the same place, resized, recompressed, cropped or with overlapping "
        "fields of view: keep them in one split, only list them, or do not look for them (join)",
    )
    add(
        "--group",
        metavar="PATTERN",
        help="regular expression for paths below the input; images with the same (?P<group>...), "
        "of one specimen for instance, stay in one split",
    )


def check_early(flags: argparse.Namespace, place: preflight.SubmittedDriver | None) -> None:
    """Refuse what can be known before Spark starts."""
    settings = tiling_settings(flags)
    preflight.check_input(settings.input, "--input", place)
    overwrite = settings.overwrite or settings.update
    present = preflight.present_at(settings.output, place)
    kind = tiles_kind(None if present is None else present[0])
    preflight.check_output(settings.output, kind, settings.input, overwrite=overwrite, place=place)
    if settings.update and present is not None:
        DataSet.from_text(present[1], settings.output).check_settings(settings)


def tiling_settings(flags: argparse.Namespace) -> TilingSettings:
    """Return the settings that the flags name."""
    values = vars(flags)
    spec = TileSpec(
        tile=flags.tile,
        overlap=flags.overlap,
        angles=parse_angles(flags.angles),
        mode=flags.mode,
        interpolation=flags.interpolation,
        edge=flags.edge,
        include_original=flags.include_original,
    )
    names = set(TilingSettings.__dataclass_fields__) - {"spec"}
    return TilingSettings(spec=spec, **{name: values[name] for name in names})


def tile(flags: argparse.Namespace) -> ExitCode:
    """Tile as the flags say."""
    settings = tiling_settings(flags)
    session = start_spark("distkeras-grid tile", flags.master)
    tell_what = plan_tiles if flags.plan else update_tiles
    done = tell_what(settings, spark=session, say=output())
    counts = {name: getattr(done, name) for name in COUNTS}
    cut = "to cut" if flags.plan else "cut"
    # Without --prune nothing is removed, and they are counted again each time.
    words = {"removed": "removed" if settings.prune else "gone"}
    print_result(
        "images: "
        + ", ".join(f"{words.get(name, name)} {count:,}" for name, count in counts.items())
        + f", left out {len(done.left_out):,}; "
        f"{done.tiles:,} tiles {cut}, "
        f"{done.manifest['tiles']:,} in {settings.output}"
    )
    report(
        output=settings.output,
        tiles=done.manifest["tiles"],
        tiles_cut=done.tiles,
        **counts,
        left_out=done.left_out,
        filtered=done.filtered,
        images_without_tiles=done.images_without_tiles,
        report=done.report,
    )
    return ExitCode.PARTIAL if done.left_out else ExitCode.OK


main = main_of(build_parser, tile)
