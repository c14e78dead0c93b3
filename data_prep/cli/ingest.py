"""``distkeras-grid ingest``: folders of whole images in, a Parquet data set out."""

from __future__ import annotations

import argparse

from data_prep.ingest.job import ingest_images
from data_prep.ingest.settings import FOLDER, IngestSettings
from distkeras_grid.cli.console import output, report
from distkeras_grid.cli.exit_codes import ExitCode, main_of
from distkeras_grid.cli.parser import add_master_flag, verb_parser
from distkeras_grid.cli.spinner import start_spark

DESCRIPTION = """\
Store labeled PNG, JPEG, TIFF and BMP images as Parquet, uncut and of one size, in the form that
trainers read: one folder for each split, and _versions/0.json, which describes the content
(_ingest.json: how it was made). The output appears complete or not at all.
"""
EXAMPLES = """\
examples:
  photos in train/CLASS, validation/CLASS and test/CLASS:
    distkeras-grid ingest --input photos --output data --size 128 --split folder
  a list of photos, gray:
    distkeras-grid ingest --input photos --output data --size 128 --labels list.csv --gray
"""


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = verb_parser("ingest", DESCRIPTION, EXAMPLES)
    where = parser.add_argument_group("where").add_argument
    where("--input", required=True, metavar="URI", help="folder of the images, with all below it")
    where("--output", required=True, metavar="URI", help="folder to write, new or empty")
    add_master_flag(parser)
    add = parser.add_argument_group("how images look").add_argument
    add(
        "--size",
        type=int,
        required=True,
        metavar="PIXELS",
        help="height and width; images of other shapes are stretched",
    )
    add("--gray", action="store_true", help="convert images to one channel (three)")
    _add_labels(parser)
    return parser


def _add_labels(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("classes and splits").add_argument
    add(
        "--labels",
        default=FOLDER,
        metavar="RULE",
        help="folder: the name of an image's folder; folder:N: the Nth folder below the input; "
        "regex:PATTERN: the group (?P<label>...) in its file name; path:PATTERN: in its path; "
        "FILE.csv: columns file and label, optionally split and group (folder)",
    )
    add(
        "--group",
        metavar="PATTERN",
        help="regular expression for paths below the input; images with the same (?P<group>...), "
        "of one specimen for instance, stay in one split; rows have the column group",
    )
    add(
        "--split",
        default="0.8:0.1:0.1",
        metavar="SHARES",
        help="train:validation:test, train:test, or 1 for train alone; folder: the first folder "
        "below the input is train, validation or test (0.8:0.1:0.1)",
    )
    add("--seed", type=int, default=0, metavar="N", help="seed of the split (0)")
    add(
        "--allow-empty",
        action="store_true",
        help="accept a split without images of some class, which is refused otherwise",
    )


def ingest(flags: argparse.Namespace) -> ExitCode:
    """Ingest as the flags say."""
    values = {name: getattr(flags, name) for name in IngestSettings.__dataclass_fields__}
    settings = IngestSettings(**values)
    session = start_spark("distkeras-grid ingest", flags.master)
    done = ingest_images(settings, spark=session, say=output())
    report(output=settings.output, rows=done.manifest["rows"], left_out=done.left_out)
    return ExitCode.PARTIAL if done.left_out else ExitCode.OK


main = main_of(build_parser, ingest)
