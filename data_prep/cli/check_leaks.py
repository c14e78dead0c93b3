"""``distkeras-grid check-leaks``: splits and folds share no image, also of other data sets."""

from __future__ import annotations

import argparse

from data_prep.images.open_image import MAX_PIXELS
from data_prep.images.plane_selection import PlaneSelector
from data_prep.spark.leak_check import FIRST_FOLDER, check_leaks_of
from data_prep.splits.duplicate_pairs import describe_cut_short
from distkeras_grid.cli.console import output, print_result, report
from distkeras_grid.cli.exit_codes import ExitCode, main_of
from distkeras_grid.cli.parser import add_master_flag, verb_parser
from distkeras_grid.cli.spinner import start_spark

DESCRIPTION = """\
Check that nothing stands in two splits: the same pixels in any file format, the same group (such as
a specimen), or the same place of a specimen, resized, recompressed, cropped or with an overlapping
field of view. The folds of a data set are checked in the same way. Ends with code 3 and a list if
something is found.

--data is a data set of tiles, or a folder of images that anybody has divided, with one folder for
each split, such as train/, val/ and test/.
"""
EXAMPLES = """\
examples:
  distkeras-grid check-leaks --data hdfs:///tiles
  distkeras-grid check-leaks --data downloads/rocks --group '/(?P<group>S[0-9]+)_'
  distkeras-grid check-leaks --data downloads/cells --glob '*.czi' --channel DAPI --z max
"""


def blind_spot(*, near_duplicates: bool) -> str:
    """Return what the check cannot see, as one line."""
    if not near_duplicates:
        return "not looked for: pictures of the same place (--near-duplicates on)"
    return (
        "not seen: mirrored copies, some crops to half of both sides, and most pairs that share 30 "
        "% of their width; groups that are known (--group) tell those"
    )


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = verb_parser("check-leaks", DESCRIPTION, EXAMPLES)
    add = parser.add_argument
    add("--data", required=True, metavar="URI", help="data set of tiles, or folder of images")
    add(
        "--splits",
        default=FIRST_FOLDER,
        metavar="PATTERN",
        help="of a folder: regular expression for paths below it, with a group (?P<split>...) "
        "(the first folder)",
    )
    add(
        "--group",
        metavar="PATTERN",
        help="of a folder: regular expression with a group (?P<group>...), such as the specimen",
    )
    add(
        "--near-duplicates",
        choices=("on", "off"),
        default="on",
        help="whether pictures of the same place are looked for (on)",
    )
    add(
        "--glob",
        metavar="PATTERN",
        help="of a folder: file names to check (all PNG, JPEG, TIFF and BMP)",
    )
    add("--page", type=int, metavar="N", help="of a folder: page of files that have several")
    add(
        "--channel",
        metavar="N|NAME",
        help="of a folder: channel of files that have several: a number from 0, a name, or three "
        "with commas",
    )
    add(
        "--z",
        metavar="N|max|mean",
        help="of a folder: focal plane of files that have several, or the maximum or mean of all",
    )
    add(
        "--max-pixels",
        type=int,
        default=MAX_PIXELS,
        metavar="N",
        help="of a folder: larger images that can only be decoded as a whole are not judged "
        f"({MAX_PIXELS})",
    )
    add_master_flag(parser)
    return parser


def check(flags: argparse.Namespace) -> ExitCode:
    """Check as the flags say."""
    session = start_spark("distkeras-grid check-leaks", flags.master)
    checked = check_leaks_of(
        flags.data,
        spark=session,
        splits=flags.splits,
        group=flags.group,
        near_duplicates=flags.near_duplicates == "on",
        glob=flags.glob,
        choice=PlaneSelector(flags.page, flags.channel, flags.z),
        max_pixels=flags.max_pixels,
        say=output(),
    )
    counts = ", ".join(f"{split} {count:,}" for split, count in sorted(checked.pictures.items()))
    print_result(f"images: {counts}")
    for leak in checked.leaks:
        print_result(f"  {leak.describe()}")
    for name, why in sorted(checked.unreadable.items()):
        print_result(f"  not judged: {name}: {why}")
    for line in describe_cut_short(checked.cut_short):
        print_result(line)
    print_result(f"{len(checked.leaks):,} leaks" if checked.leaks else "no leak")
    print_result(f"  {blind_spot(near_duplicates=flags.near_duplicates == 'on')}")
    report(
        data=flags.data,
        images=checked.pictures,
        leaks=[leak.to_json() for leak in checked.leaks],
        not_judged=checked.unreadable,
        cut_short=checked.cut_short,
    )
    if checked.leaks:
        return ExitCode.DATA
    return ExitCode.PARTIAL if checked.unreadable else ExitCode.OK


main = main_of(build_parser, check)
