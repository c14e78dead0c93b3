"""Distributed training of Keras models on Spark, from microscopy images to a trained model.

Importing the package imports neither TensorFlow nor Spark: each public name is loaded when it is
first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from distkeras_grid.feeding.schema import Field
    from distkeras_grid.history import History
    from distkeras_grid.inference.evaluator import AccuracyEvaluator
    from distkeras_grid.inference.predictor import ModelPredictor
    from distkeras_grid.inference.recalibration import recalibrate
    from distkeras_grid.local_sets.sets import LocalSets
    from distkeras_grid.model_parallel.convolution_split import ConvolutionSplit
    from distkeras_grid.model_parallel.placed_layers import PlacedLayers
    from distkeras_grid.model_parallel.towers import Towers
    from distkeras_grid.rules.gradient_compression import DeepGradientCompression
    from distkeras_grid.sandbox.cluster import Sandbox
    from distkeras_grid.simulation.cluster import Cluster, Outage
    from distkeras_grid.spark.dataframes import read_tiles
    from distkeras_grid.spark.session import build_session
    from distkeras_grid.spec import Outliers
    from distkeras_grid.trainers.downpour import ADAG, DOWNPOUR
    from distkeras_grid.trainers.elastic import AEASGD, EAMSGD, EASGD
    from distkeras_grid.trainers.ensemble import EnsembleTrainer
    from distkeras_grid.trainers.saved_run import SavedRun, load
    from distkeras_grid.trainers.single import SingleTrainer
    from distkeras_grid.trainers.staleness import GEM, DynSGD, StalenessADAG
    from distkeras_grid.trainers.synchronous import AveragingTrainer, SynchronousSGD
    from distkeras_grid.webhdfs.operations import download, list_directory, upload

__version__ = "0.2.0.dev0"

_HOMES = {
    "ADAG": "trainers.downpour",
    "AEASGD": "trainers.elastic",
    "AccuracyEvaluator": "inference.evaluator",
    "AveragingTrainer": "trainers.synchronous",
    "Cluster": "simulation.cluster",
    "ConvolutionSplit": "model_parallel.convolution_split",
    "DOWNPOUR": "trainers.downpour",
    "DeepGradientCompression": "rules.gradient_compression",
    "DynSGD": "trainers.staleness",
    "EAMSGD": "trainers.elastic",
    "EASGD": "trainers.elastic",
    "EnsembleTrainer": "trainers.ensemble",
    "Field": "feeding.schema",
    "GEM": "trainers.staleness",
    "History": "history",
    "LocalSets": "local_sets.sets",
    "ModelPredictor": "inference.predictor",
    "Outage": "simulation.cluster",
    "Outliers": "spec",
    "Sandbox": "sandbox.cluster",
    "PlacedLayers": "model_parallel.placed_layers",
    "SavedRun": "trainers.saved_run",
    "SingleTrainer": "trainers.single",
    "StalenessADAG": "trainers.staleness",
    "SynchronousSGD": "trainers.synchronous",
    "Towers": "model_parallel.towers",
    "build_session": "spark.session",
    "download": "webhdfs.operations",
    "list_directory": "webhdfs.operations",
    "load": "trainers.saved_run",
    "read_tiles": "spark.dataframes",
    "recalibrate": "inference.recalibration",
    "upload": "webhdfs.operations",
}

__all__ = [
    "ADAG",
    "AEASGD",
    "DOWNPOUR",
    "EAMSGD",
    "EASGD",
    "GEM",
    "AccuracyEvaluator",
    "AveragingTrainer",
    "Cluster",
    "ConvolutionSplit",
    "DeepGradientCompression",
    "DynSGD",
    "EnsembleTrainer",
    "Field",
    "History",
    "LocalSets",
    "ModelPredictor",
    "Outage",
    "Outliers",
    "PlacedLayers",
    "Sandbox",
    "SavedRun",
    "SingleTrainer",
    "StalenessADAG",
    "SynchronousSGD",
    "Towers",
    "build_session",
    "download",
    "list_directory",
    "load",
    "read_tiles",
    "recalibrate",
    "upload",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
