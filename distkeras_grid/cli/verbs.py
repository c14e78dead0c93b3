"""The one table of verbs: the command line, the jobs, `submit` and the containers read it.

A verb is imported when it runs, and by its name alone: that needs no installed metadata, which a
container has not, and no import of what lies above the command line.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from types import ModuleType


@dataclass(frozen=True, slots=True)
class Verb:
    """One verb of the command line."""

    # Has ``main`` and ``build_parser``, and if it runs on a cluster ``check_early``: it takes the
    # parsed flags and, of a submission, the `SubmittedDriver`, and refuses what can be known before
    # Spark starts
    module: str
    description: str  # One line of the help text
    on_cluster: bool = False  # Whether it is a Spark job, which `submit` can run on a cluster

    def load(self) -> ModuleType:
        """Import the module."""
        return importlib.import_module(self.module)


# In the order in which the help text names them.
VERBS = {
    "tile": Verb(
        "data_prep.cli.tile",
        "cut microscopy images into overlapping, rotated tiles (Parquet)",
        on_cluster=True,
    ),
    "ingest": Verb(
        "data_prep.cli.ingest",
        "store folders of whole images, of one size, as Parquet",
    ),
    "train": Verb(
        "distkeras_grid.cli.train", "train a Keras model on Spark workers", on_cluster=True
    ),
    "retrain": Verb(
        "distkeras_grid.cli.retrain",
        "continue training the last model of a folder of runs, on new images",
        on_cluster=True,
    ),
    "predict": Verb(
        "distkeras_grid.cli.predict", "add a model's predictions to a data set", on_cluster=True
    ),
    "evaluate": Verb(
        "distkeras_grid.cli.evaluate", "compare predictions with labels", on_cluster=True
    ),
    "check-leaks": Verb(
        "data_prep.cli.check_leaks",
        "prove that nothing stands in two splits, also of data sets of others",
    ),
    "folds": Verb(
        "data_prep.cli.folds",
        "divide a data set of tiles into folds for cross-validation",
    ),
    "revise": Verb(
        "data_prep.cli.revise",
        "change labels, groups, splits and exclusions of a data set of tiles, without a tile",
    ),
    "compact": Verb(
        "data_prep.cli.compact",
        "copy the small shards of many nights into fewer ones",
        on_cluster=True,
    ),
    "versions": Verb(
        "data_prep.cli.versions",
        "list the versions of a data set of tiles, with the hashes that a paper can cite",
    ),
    "export": Verb(
        "data_prep.cli.export",
        "copy a data set to PNG folders or for Hugging Face",
        on_cluster=True,
    ),
    "submit": Verb(
        "distkeras_grid.cli.submit",
        "run one of these verbs, or your own program, on YARN or a standalone cluster",
    ),
    "status": Verb(
        "distkeras_grid.cli.status", "show the state of a submitted application, or list them"
    ),
    "logs": Verb(
        "distkeras_grid.cli.logs", "show what a submitted application wrote, without Hadoop"
    ),
    "cancel": Verb("distkeras_grid.cli.cancel", "stop a submitted application"),
    "doctor": Verb(
        "distkeras_grid.cli.doctor",
        "check whether a cluster can run a training",
        on_cluster=True,
    ),
    "put": Verb(
        "distkeras_grid.cli.put", "copy files and folders to HDFS, without Java and Hadoop"
    ),
    "get": Verb(
        "distkeras_grid.cli.get", "copy files and folders from HDFS, without Java and Hadoop"
    ),
    "ls": Verb("distkeras_grid.cli.ls", "list a directory on HDFS, without Java and Hadoop"),
    "rm": Verb("distkeras_grid.cli.rm", "delete files and directories on HDFS"),
    "sandbox": Verb(
        "distkeras_grid.cli.sandbox", "start and stop a real HDFS and YARN on this machine"
    ),
}
