"""Local sets in place of rows: where their tiles are, and what a run on them is called."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from distkeras_grid.errors import ConfigurationError, SchemaError
from distkeras_grid.feeding.schema import METADATA_KEY, Field
from distkeras_grid.feeding.targets import LabelSummary
from distkeras_grid.local_sets.sampler import TileSampler, expected_coverage
from distkeras_grid.local_sets.sets import LocalSets
from distkeras_grid.local_sets.store import LocalPlan
from distkeras_grid.spark.columns import Columns, resolve_columns
from distkeras_grid.spark.dataframes import as_dataframe
from distkeras_grid.spark.row_partitioner import DataSummary
from distkeras_grid.spark.session import active_session
from distkeras_grid.stores.dataset_index import DatasetIndex, catalogue

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pyspark.sql import DataFrame

    from distkeras_grid.records import LocalRecord
    from distkeras_grid.trainers.config import TrainerConfig, TrainingData


@dataclass(frozen=True)
class LocalData:
    """The local sets of a run, before its workers are counted."""

    sets: LocalSets  # What was asked for
    index: DatasetIndex  # The data set

    def plan(self, seed: int, workers: int) -> LocalPlan:
        """Return what the workers need."""
        sets, pool = self.sets, self.index.store.pool
        training = pool if sets.split is None else self.index.pool_of(sets.split)
        held_out = pool.select(pool.tiles < 0)
        if sets.local_test and sets.test_images == "held_out":
            held_out = self.index.pool_of(sets.test_split)
        drawing = TileSampler(training, held_out, sets.spec, seed, workers)
        if sets.local_test and sets.test_images == "others":
            # Images are divided anew in each iteration, and some divisions may leave too few tiles.
            for iteration, worker in itertools.product(range(sets.iterations), range(workers)):
                drawing.train(iteration, worker)
                drawing.test(iteration, worker)
        return LocalPlan(self.index.store, drawing)

    def summary(self, workers: int) -> DataSummary:
        """Return what a job over the rows of an epoch would find: the sets of all workers."""
        sets, labels = self.sets, self.index.store.pool.labels
        return DataSummary(
            rows=workers * sets.local_train,
            partition_rows=(),
            labels=(LabelSummary(float(labels.min()), float(labels.max())),),
            splits=() if sets.split is None else (sets.split,),
        )


def local_config(config: TrainerConfig, sets: LocalSets) -> TrainerConfig:
    """Return the configuration of a run on local sets: an epoch is an iteration."""
    wrong = {
        "num_epoch": config.num_epoch != 1 and f"{config.num_epoch}; give LocalSets the iterations",
        "communication_window": config.communication_window == "once"
        and "'once'; workers exchange once in each iteration, or more often",
        "data": config.share != "partition"
        and f"{config.share!r}, by {config.trainer_name}; each worker has sets of its own",
    }
    for name, problem in wrong.items():
        if problem:
            raise ConfigurationError(
                f"A run on local sets leaves {name} at its default. Received: {problem}."
            )
    return config.replace(num_epoch=sets.iterations)


def resolve_local(config: TrainerConfig, data: TrainingData) -> tuple[LocalData, Columns]:
    """Find the tiles of local sets, and the columns that a run on them reads."""
    sets: LocalSets = data.data
    model = config.keras_model
    if data.sample_weight is not None:
        raise ConfigurationError(
            "Local sets have no sample weights. Received: sample_weight_col "
            f"{data.sample_weight!r}."
        )
    frame = as_dataframe(active_session(), sets.data)
    columns = resolve_columns(frame, config.features_col, config.label_col, model=model)
    if len(columns.features) != 1 or len(columns.labels) != 1:
        raise ConfigurationError(
            "Local sets are for models with one input and one output. Received: "
            f"{len(columns.features)} inputs and {len(columns.labels)} outputs."
        )
    root = sets.data if isinstance(sets.data, str) else ""
    return LocalData(sets, catalogue(frame, columns, root, sets.mirrors)), columns


def count_drawn(plan: LocalPlan) -> dict[int, int]:
    """Return how many rows of each class are drawn, up to a factor: as many of each."""
    return dict.fromkeys(range(plan.drawing.training.classes), 1)


def own_fields(frame: DataFrame, fields: Sequence[Field]) -> tuple[Field, ...]:
    """Return the features of validation data, which may be stored otherwise than local sets are."""
    fitting = []
    for field in fields:
        metadata = frame.schema[field.name].metadata if field.name in frame.columns else {}
        own = Field.from_metadata(field.name, metadata) if METADATA_KEY in metadata else field
        if (own.shape, own.scaling) != (field.shape, field.scaling):
            raise SchemaError(
                f"Column {field.name!r} must be as in the local sets: shape {field.shape}, scaling "
                f"{field.scaling}. Received: shape {own.shape}, scaling {own.scaling}. Tile both "
                "in the same way."
            )
        fitting.append(own)
    return tuple(fitting)


def local_notes(plan: LocalPlan, iterations: int) -> list[str]:
    """Return lines to show before a run on local sets."""
    drawing, store = plan.drawing, plan.store
    spec, pool = drawing.spec, drawing.training
    sets = iterations * drawing.workers
    expected = expected_coverage(pool, spec.local_train, sets)
    places = np.concatenate([drawing.train(0, 0), drawing.test(0, 0)])
    return [
        f"Each worker draws {spec.local_train:,} of {len(pool):,} tiles for each of {iterations} "
        f"iterations; together they reach about {expected:.1%} of them. For the sets of an "
        f"iteration it reads about {store.describe_reading(places)}"
    ]


def describe_local(
    plan: LocalPlan, iterations: int, records: Iterable[LocalRecord]
) -> dict[str, Any]:
    """Return what a history keeps of the local sets of a run, as JSON values."""
    drawing = plan.drawing
    spec, pool = drawing.spec, drawing.training
    tests = list(records)
    folded = {(record.iteration - 1, record.worker) for record in tests if record.folded}
    return {
        "tiles": len(pool),
        "images": len(np.unique(pool.images)),
        "class_sizes": pool.class_sizes.tolist(),
        "expected_coverage": expected_coverage(
            pool, spec.local_train, iterations * drawing.workers
        ),
        "folded_coverage": drawing.coverage(folded),
        "read_seconds": sum(record.local.read_seconds for record in tests),
        "bytes_read": sum(sum(record.local.bytes_read.values()) for record in tests),
    }
