"""``distkeras-grid ingest``: published image collections in, a Parquet data set out."""

from __future__ import annotations

import argparse

from data_prep.ingest.job import IMAGES, ingest_images
from data_prep.ingest.settings import FOLDER, FORMATS, IngestSettings
from distkeras_grid.cli import preflight
from distkeras_grid.cli.console import output, report
from distkeras_grid.cli.exit_codes import ExitCode, main_of
from distkeras_grid.cli.parser import add_master_flag, verb_parser
from distkeras_grid.cli.spinner import start_spark

DESCRIPTION = """\
Store labeled images as Parquet, in the form that trainers read: one folder for each split, and
_versions/0.json, which describes the content (_ingest.json: how it was made).

Pixels stay uint8. With --standardise or --pca they become float32. What these options compute from
the training split is stored in _transform.npz, for new images. The output appears complete or not
at all.

Memory: a task holds 16 MB of files, or one larger file (an IDX file in its compressed form), and
8 MB of rows. --standardise and --pca keep the uint8 pixels on the executors' disks while they read
them several times. --pca needs about 15 kB for each pixel of an image in each task and 60 kB on the
driver (--size 128: 0.25 GB and 1 GB, --size 64: a quarter), because it builds no covariance matrix.
"""
EXAMPLES = """\
examples:
  the four files of Fashion-MNIST (https://github.com/zalandoresearch/fashion-mnist):
    distkeras-grid ingest --format idx --input fashion --output hdfs:///fashion \\
        --classes 'T-shirt,trouser,pullover,dress,coat,sandal,shirt,sneaker,bag,boot'
  the binary files of CIFAR-10, each pixel with mean 0 and deviation 1:
    distkeras-grid ingest --format cifar10 --input cifar-10-batches-bin --output cifar \\
        --standardise
  photos in train/CLASS, validation/CLASS and test/CLASS:
    distkeras-grid ingest --format images --input photos --output data --size 128 --split folder
  a list of photos, gray, as 28x28x1 principal components:
    distkeras-grid ingest --format images --input photos --output data --size 128 \\
        --labels list.csv --gray --pca
"""


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = verb_parser("ingest", DESCRIPTION, EXAMPLES)
    where = parser.add_argument_group("where").add_argument
    where(
        "--format",
        required=True,
        choices=FORMATS,
        help="idx: the four files of MNIST or Fashion-MNIST, as .gz or unpacked; cifar10: "
        "data_batch_*.bin and test_batch.bin; images: PNG, JPEG, TIFF and BMP",
    )
    where("--input", required=True, metavar="URI", help="folder of the files, with its subfolders")
    where("--output", required=True, metavar="URI", help="folder to write, new or empty")
    add_master_flag(parser)
    _add_look(parser)
    _add_labels(parser)
    return parser


def _add_look(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("how images look").add_argument
    add(
        "--size",
        type=int,
        metavar="PIXELS",
        help="height and width; images of other shapes are stretched (required with --format "
        "images; by default images keep their size)",
    )
    add("--gray", action="store_true", help="convert images to one channel")
    add(
        "--standardise",
        action="store_true",
        help="give each pixel mean 0 and standard deviation 1 over the training split (float32)",
    )
    add(
        "--pca",
        action="store_true",
        help="with --gray: replace an image by its 784 principal components, as 28x28x1 "
        "(float32); with --standardise each component is divided by its standard deviation",
    )


def _add_labels(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("classes and splits").add_argument
    add(
        "--labels",
        default=FOLDER,
        metavar="RULE",
        help="for --format images. folder: the name of an image's folder; folder:N: the Nth folder "
        "below the input; regex:PATTERN: the group (?P<label>...) in its file name; path:PATTERN: "
        "in its path; FILE.csv: columns file and label, optionally split and group (folder)",
    )
    add(
        "--group",
        metavar="PATTERN",
        help="for --format images. regular expression for paths below the input; images with the "
        "same (?P<group>...), of one specimen for instance, stay in one split; rows have the "
        "column group",
    )
    add(
        "--split",
        default="0.8:0.1:0.1",
        metavar="SHARES",
        help="for --format images. train:validation:test, train:test, or 1 for train alone; "
        "folder: the first folder below the input is train, validation or test (0.8:0.1:0.1)",
    )
    add("--seed", type=int, default=0, metavar="N", help="seed of the split (0)")
    add(
        "--allow-empty",
        action="store_true",
        help="for --format images. accept a split without images of some class, which is refused "
        "otherwise",
    )
    add(
        "--classes",
        default="",
        metavar="NAME,NAME",
        help="for --format idx: names of the classes, in the order of their numbers (the numbers)",
    )


def ingest(flags: argparse.Namespace) -> ExitCode:
    """Ingest as the flags say."""
    values = {name: getattr(flags, name) for name in IngestSettings.__dataclass_fields__}
    names = tuple(name.strip() for name in flags.classes.split(",") if name.strip())
    settings = IngestSettings(**{**values, "classes": names})
    preflight.check_input(settings.input, "--input")
    preflight.check_output(settings.output, IMAGES, settings.input, overwrite=False)
    session = start_spark("distkeras-grid ingest", flags.master)
    done = ingest_images(settings, spark=session, say=output())
    report(output=settings.output, rows=done.manifest["rows"], left_out=done.left_out)
    return ExitCode.PARTIAL if done.left_out else ExitCode.OK


main = main_of(build_parser, ingest)
