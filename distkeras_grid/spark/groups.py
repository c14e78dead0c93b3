"""Groups of the images of a data set of tiles, such as specimens, as a column of its rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distkeras_grid.spark.dataframes import MANIFEST, read_manifest
from distkeras_grid.spark.storage import Storage
from distkeras_grid.spark.tables import read_tables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SOURCE_COLUMN, GROUP_COLUMN = "source", "group"


def with_groups(frame: DataFrame, path: str, version: int | str | None = None) -> DataFrame:
    """Return rows with the column `group`, as far as the data set knows groups.

    Parameters
    ----------
    frame : DataFrame
        Rows of the data set.
    path : str
        Folder of the data set.
    version : int or str, optional
        That the rows are of; see `read_tiles`.

    Returns
    -------
    DataFrame
        The same rows; unchanged without groups, or if a column `group` is there already. The
        column is null for an image without a group.

    Raises
    ------
    SchemaError
        If the manifest is damaged.
    """
    from pyspark.sql import functions as F

    spark = frame.sparkSession
    if SOURCE_COLUMN not in frame.columns or GROUP_COLUMN in frame.columns:
        return frame
    root = path.rstrip("/")
    manifest = read_manifest(Storage(spark), root, version)
    sources = () if manifest is None else read_tables(manifest, f"{root}/{MANIFEST}").sources
    groups = [(each.source, each.group) for each in sources if each.group is not None]
    if not groups:
        return frame
    table = F.broadcast(spark.createDataFrame(groups, f"_source string, {GROUP_COLUMN} string"))
    known = frame.join(table, frame[SOURCE_COLUMN] == table["_source"], "left")
    return known.drop("_source")
