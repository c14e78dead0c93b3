"""``distkeras-grid export``: a data set of images as files for other programs."""

from __future__ import annotations

import argparse

from data_prep.export.job import (
    FORMATS,
    ExportSettings,
    export_kind,
    export_tiles,
)
from distkeras_grid.cli import preflight
from distkeras_grid.cli.console import print_note, print_result, report
from distkeras_grid.cli.exit_codes import main_of
from distkeras_grid.cli.parser import add_master_flag, add_selection_flags, verb_parser
from distkeras_grid.cli.predict import rows_of, rows_where
from distkeras_grid.cli.spinner import spinner, start_spark

DESCRIPTION = """\
Copy a data set of tiles, or of ingested images, to files that other programs read. All of them
appear, or none. Pixels are stored as PNG without loss; JPEG tiles stay the files that they are.

  png          SPLIT/CLASS/TILE.png, the image folders of Keras, PyTorch and others; the other
               columns are in _columns (Parquet)
  huggingface  SPLIT/*.parquet: datasets.load_dataset(FOLDER) has splits, images and classes;
               the rows are shuffled, because such files are read from the front
"""
EPILOG = """\
examples:
  distkeras-grid export --data tiles --format huggingface --output shared
  distkeras-grid submit export --data hdfs:///tiles --format png --output hdfs:///folders
"""


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = verb_parser("export", DESCRIPTION, EPILOG)
    add = parser.add_argument
    add("--data", required=True, metavar="URI", help="data set of tiles or of ingested images")
    add("--format", required=True, choices=FORMATS, help="what to write")
    add(
        "--output",
        required=True,
        metavar="URI",
        help="folder to write, new or empty: on HDFS, or one that all hosts see; huggingface is "
        "written by Spark, and so anywhere",
    )
    add("--image", default="image", metavar="COLUMN", help="image column (image)")
    add_selection_flags(parser, "only this split, or several with commas between (all rows)")
    add("--where", metavar="CONDITION", help="only rows that meet this condition in SQL")
    add("--overwrite", action="store_true", help="replace the export of these splits in --output")
    add_master_flag(parser)
    return parser


def run(flags: argparse.Namespace) -> None:
    """Export as the flags say."""
    check_early(flags)
    settings = export_settings(flags)
    spark = start_spark("distkeras-grid export", flags.master)
    with spinner("looking at the data"):
        rows = rows_where(rows_of(spark, flags), flags.where)
    counts = export_tiles(rows, settings, inputs=(flags.data,), say=print_note)
    totals = ", ".join(f"{split} {count:,}" for split, count in counts.items())
    print_result(f"exported {totals}; wrote {flags.output}")
    report(output=flags.output, format=flags.format, rows=counts)


def export_settings(flags: argparse.Namespace) -> ExportSettings:
    """Return the settings that the flags name."""
    return ExportSettings(
        flags.format,
        flags.output,
        image=flags.image,
        overwrite=flags.overwrite,
    )


def check_early(flags: argparse.Namespace, place: preflight.SubmittedDriver | None = None) -> None:
    """Refuse what can be known before Spark starts."""
    export_settings(flags)
    preflight.check_fold(flags.split, flags.fold)
    preflight.check_input(flags.data, "--data", place)
    names = ["*"] if flags.split is None else flags.split.split(",")
    preflight.check_output(
        flags.output, export_kind(names), flags.data, overwrite=flags.overwrite, place=place
    )


main = main_of(build_parser, run)
