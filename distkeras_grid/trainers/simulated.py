"""``Trainer.simulate``: a run on a cluster that is not there, in this process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from distkeras_grid.engine.keras_model import (
    get_flat_weights,
    model_to_bytes,
    set_flat_weights,
    weight_layout,
)
from distkeras_grid.engine.loading import load_engine
from distkeras_grid.engine.optimizers import skip_steps
from distkeras_grid.engine.own_objects import remember_objects
from distkeras_grid.errors import ConfigurationError, DataError
from distkeras_grid.feeding.batches import seat_windows
from distkeras_grid.feeding.schema import DTYPES, Field
from distkeras_grid.feeding.shapes import (
    Port,
    check_fit,
    check_one_output,
    inputs_of,
    match,
    outputs_of,
)
from distkeras_grid.history import History
from distkeras_grid.progress import SILENT
from distkeras_grid.simulation.cluster import Cluster
from distkeras_grid.simulation.keras_learners import KerasStepper, keras_learners
from distkeras_grid.simulation.rows import SeatRows
from distkeras_grid.simulation.run import Simulation
from distkeras_grid.spark.dataframes import Columns, Label, as_dataframe, resolve_columns
from distkeras_grid.spark.seats import DataSummary, largest_seat
from distkeras_grid.spark.session import active_session
from distkeras_grid.spec import DataSpec, RunSpec
from distkeras_grid.trainers.arguments import (
    check_backend,
    checked_class_weight,
    checked_whole,
    settled,
)
from distkeras_grid.trainers.checking import check_rule, compiled_copy, rule_of
from distkeras_grid.trainers.compressing import (
    check_momentum,
    compression_notes,
)
from distkeras_grid.trainers.description import (
    choices,
    described_parameters,
    policies,
)
from distkeras_grid.trainers.inspection import inspect_training, naming
from distkeras_grid.trainers.labels import check_classes, check_labels
from distkeras_grid.trainers.recalibration import set_statistics
from distkeras_grid.trainers.run import epoch_line
from distkeras_grid.trainers.run_status import TRAINING, run_progress
from distkeras_grid.trainers.specification import described_fields, run_spec
from distkeras_grid.trainers.validation import ValidationData
from distkeras_grid.worker.loop import sample_weights

if TYPE_CHECKING:
    import keras
    from numpy.typing import NDArray

    from distkeras_grid.engine.base import ModelEngine
    from distkeras_grid.engine.compile_settings import CompileSettings
    from distkeras_grid.rules import Rule
    from distkeras_grid.trainers.base import Trainer
    from distkeras_grid.trainers.defaults import WindowChoice
    from distkeras_grid.weights import WeightLayout


@dataclass(frozen=True)
class SimulatedRun:
    """What `Trainer.simulate` returns.

    Parameters
    ----------
    model : keras.Model
        A new model with the trained weights, compiled.
    history : History
        All its times are simulated seconds; ``params["time"]`` says so.
    cluster : Cluster
        What was simulated, with the seconds of a batch where these were measured.
    computing_seconds : tuple of float
        Simulated time for which each worker has computed; the rest it waited [s].
    lost : int
        Attempts of workers that were lost.
    """

    model: keras.Model = field(repr=False)
    history: History
    cluster: Cluster
    computing_seconds: tuple[float, ...]
    lost: int


@dataclass(frozen=True)
class _Rows:
    """All rows, in this process."""

    features: tuple[NDArray[Any], ...]
    labels: tuple[NDArray[Any], ...]
    weights: NDArray[np.float32] | None
    fields: tuple[Field, ...]

    def __len__(self) -> int:
        return len(self.features[0])

    def deal(
        self, seats: int, seed: int | None, class_weight: Mapping[int, float] | None
    ) -> list[SeatRows]:
        """Return the rows of each seat: mixed by `seed`, or consecutive without one."""
        weights = sample_weights(self.labels, self.weights, class_weight)
        rows = np.arange(len(self))
        if seed is not None:
            rows = np.random.default_rng(seed).permutation(rows)
        return [
            SeatRows(
                tuple(features[part] for features in self.features),
                tuple(labels[part] for labels in self.labels),
                None if weights is None else weights[part],
            )
            for part in np.array_split(rows, seats)
        ]


def simulate(
    trainer: Trainer,
    data: Any,
    cluster: Cluster,
    *,
    shuffle: bool,
    validation_data: Any,
    class_weight: Mapping[int, float] | None,
    seed: int,
) -> SimulatedRun:
    """Run a trainer in simulated time; `Trainer.simulate` has the meanings."""
    check_backend()
    arguments = settled(trainer)
    seed = checked_whole("seed", seed, least=0)
    _check_workers(trainer, cluster)
    class_weight = checked_class_weight(class_weight)
    check_one_output(class_weight, outputs_of(trainer.keras_model))
    model, settings = compiled_copy(trainer)
    check_rule(trainer, model)
    rows = _read(trainer, data, model, class_weight)
    with naming("validation_data"):
        held_out = None if validation_data is None else _read(trainer, validation_data, model)
    count, fields = len(rows), rows.fields
    window = trainer.choose_window(largest_seat(count, cluster.workers), cluster.workers)
    rule = _rule(trainer, model, window, cluster.workers)
    spec = run_spec(
        trainer,
        rule,
        settings,
        weight_layout(model, slots=trainer.slots_travel),
        {"rows": count, "workers": cluster.workers, "shuffle": bool(shuffle), "seed": seed},
        window,
        DataSpec(features=described_fields(fields), class_weight=class_weight),
    )
    seats = rows.deal(cluster.workers, seed if shuffle else None, class_weight)
    # The seats have them: what came from Spark is not held twice.
    del rows
    engine = _engine(trainer, model, settings, spec, rule, fields)
    # Once also where nobody asks how long it takes: the engine refuses here what it cannot train.
    timed = _measure(engine, spec, seats[0], times=1 if cluster.batch_seconds else 3)
    if cluster.batch_seconds is None:
        cluster = replace(cluster, batch_seconds=timed)
    simulation = Simulation(
        cluster,
        spec,
        keras_learners(engine, cluster.workers, seed if cluster.workers > 1 else None),
        seats,
        evaluate=_evaluation(model, held_out, engine.layout),
        params=policies(arguments.optimizer_state, arguments.statistics, rule, cluster.workers),
        stepper=KerasStepper(engine) if rule.traits.steps_on_workers else None,
    )
    said = [
        *([trainer.introduction] if trainer.introduction else []),
        *compression_notes(arguments.compression, arguments.epochs),
        *choices(window, arguments.quorum, simulation.needed, cluster.workers),
    ]
    _watch(trainer, simulation, spec, rule, cluster, said)
    set_flat_weights(model, simulation.center, engine.layout)
    if engine.layout.slots:
        skip_steps(model.optimizer, simulation.history.most_steps())
    if trainer.statistics == "recalibrate":
        _recalibrate(model, engine, spec, seats)
    remember_objects(model, arguments.custom_objects)
    computed = tuple(worker.computed for worker in simulation.workers)
    return SimulatedRun(model, simulation.history, cluster, computed, simulation.lost)


def _check_workers(trainer: Trainer, cluster: Cluster) -> None:
    if trainer.workers_asked not in (None, cluster.workers):
        raise ConfigurationError(
            f"The cluster has {cluster.workers} workers and the trainer num_workers="
            f"{trainer.workers_asked}: leave num_workers out, or give both the same number."
        )


def _rule(trainer: Trainer, model: keras.Model, window: WindowChoice, workers: int) -> Rule:
    rule = rule_of(trainer, workers, model)
    if rule.traits.own_center:
        raise ConfigurationError(
            f"{type(trainer).__name__}'s workers never meet: there is nothing to simulate. Use "
            "train(), or simulate another trainer."
        )
    check_momentum(settled(trainer).compression, rule, window, model.optimizer)
    return rule


def _engine(
    trainer: Trainer,
    model: keras.Model,
    settings: CompileSettings,
    spec: RunSpec,
    rule: Rule,
    fields: tuple[Field, ...],
) -> ModelEngine:
    return load_engine(
        model_to_bytes(model),
        settings.to_json(),
        custom_objects=settled(trainer).custom_objects,
        scaling=tuple(field.scaling for field in fields),
        block_shape=None if spec.window is None else (spec.window, spec.batch_size),
        jit=spec.algorithm.jit,
        local_steps=rule.traits.local_steps,
        momentum=rule.local_momentum,
        optimizer_state=spec.algorithm.optimizer_state,
    )


def _recalibrate(
    model: keras.Model, engine: ModelEngine, spec: RunSpec, seats: Sequence[SeatRows]
) -> None:
    """Measure the statistics of batch normalization on all rows; takes no simulated time."""
    once = spec.change(epochs=1, epochs_per_window=1).schedule
    blocks = (
        block
        for number, seat in enumerate(seats)
        for window in seat_windows(once, len(seat), number)
        for block in seat.gather(window)
    )
    weights = get_flat_weights(model, engine.layout)
    set_statistics(model, [engine.measure_statistics(weights, blocks)])


def _measure(engine: ModelEngine, spec: RunSpec, seat: SeatRows, times: int) -> float:
    """Return how long a batch takes on this machine [s]."""
    block = next(seat.gather(next(seat_windows(spec.schedule, len(seat), 0))))
    # The least of a few: whatever else this machine does only adds to it.
    return min(engine.warm_up(block) for _ in range(times)) / block.steps


def _watch(
    trainer: Trainer,
    simulation: Simulation,
    spec: RunSpec,
    rule: Rule,
    cluster: Cluster,
    said: Sequence[str],
) -> None:
    """Run to the end, showing how far it is in simulated time."""
    epochs, window, shown = (
        simulation.history.epoch_records,
        spec.schedule.communication_window,
        0,
    )
    with run_progress(None if trainer.progress else SILENT) as progress:
        progress.update(
            total_samples=spec.rows * spec.epochs, epochs=spec.epochs, workers=spec.workers
        )
        for line in said:
            progress.note(line)
        progress.note(
            f"{spec.algorithm.trainer} in simulated time: {spec.rows} rows, "
            f"{spec.workers} workers, batch {spec.batch_size} each, "
            f"{(cluster.batch_seconds or 0) * 1e3:.3g} ms a batch, window "
            + (f"{window} batches" if isinstance(window, int) else window)
            + described_parameters(rule)
        )
        while simulation.advance():
            progress.update(
                phase=TRAINING,
                epoch=len(epochs) + 1,
                samples=simulation.samples,
                active=sum(worker.session is not None for worker in simulation.workers),
                busy_with=f"at {simulation.now:.1f} s of simulated time",
            )
            for record in epochs[shown:]:
                progress.note(f"simulated time: {epoch_line(record, spec.epochs)}")
            shown = len(epochs)


def _evaluation(model: keras.Model, rows: _Rows | None, layout: WeightLayout) -> Any:
    if rows is None:
        return None
    held_out = ValidationData(rows.features, rows.labels, rows.fields)

    def evaluate(center: Any) -> dict[str, float]:
        set_flat_weights(model, center, layout)
        return held_out.evaluate(model)

    return evaluate


def _read(
    trainer: Trainer,
    data: Any,
    model: keras.Model,
    class_weight: Mapping[int, float] | None = None,
) -> _Rows:
    """Bring the rows into this process, and refuse what the model cannot take."""
    if isinstance(data, tuple | list):
        return _from_arrays(data, model, class_weight)
    spark = active_session()
    frame = as_dataframe(spark, data)
    columns = resolve_columns(frame, trainer.features_col, trainer.label_col, model=model)
    check_fit(model, columns.features)
    inspect_training(frame, columns, model, class_weight)
    held = ValidationData.collect(frame, columns)
    return _Rows(held.features, held.labels, None, columns.features)


def _from_arrays(data: Any, model: keras.Model, class_weight: Mapping[int, float] | None) -> _Rows:
    if len(data) not in (2, 3):
        raise DataError(
            "Arrays are (features, labels) or (features, labels, sample weights). "
            f"Received: {len(data)} items."
        )
    inputs, outputs = inputs_of(model), outputs_of(model)
    features = _arrays(data[0], inputs, "features")
    labels = _arrays(data[1], outputs, "labels")
    weights = tuple(_sample_weights(given) for given in data[2:])
    _check_lengths((*features, *labels, *weights))
    fields = tuple(_field(*named) for named in _named(inputs, features, "features"))
    check_fit(model, fields)
    described = tuple(_label(*named) for named in _named(outputs, labels, "label"))
    columns = Columns(fields, described)
    ranges = tuple((float(array.min()), float(array.max())) for array in labels)
    summary = DataSummary(len(labels[0]), ((0, len(labels[0])),), ranges, ())
    check_labels(columns, summary, model.loss, outputs)
    check_classes(class_weight, columns, summary, outputs)
    return _Rows(features, labels, weights[0] if weights else None, fields)


def _arrays(given: Any, ports: Sequence[Port], what: str) -> tuple[NDArray[Any], ...]:
    # Of a model of one, a list is the array's content.
    several = len(ports) > 1 or isinstance(given, Mapping)
    items = match(given, ports, what) if several else (given,)
    return tuple(np.asarray(item) for item in items)


def _sample_weights(given: Any) -> NDArray[np.float32]:
    weights = np.asarray(given, np.float32)
    unusable = ~((weights >= 0) & (weights < np.inf))
    if weights.ndim != 1 or unusable.any():
        raise DataError(
            "Sample weights are one finite number of at least 0 for each row. Received: shape "
            f"{weights.shape}, {unusable.sum()} of {weights.size} null, NaN, infinite or negative."
        )
    return weights


def _check_lengths(arrays: Sequence[NDArray[Any]]) -> None:
    lengths = [len(array) if array.ndim else 0 for array in arrays]
    if len(set(lengths)) != 1 or lengths[0] == 0:
        raise DataError(
            "Arrays of features, labels and sample weights have the same number of rows, at least "
            f"1. Received lengths: {lengths}."
        )


def _named(
    ports: Sequence[Port], arrays: Sequence[NDArray[Any]], one: str
) -> Iterator[tuple[str, NDArray[Any]]]:
    """Return arrays with their names: those of the model's ends where it has several."""
    names = [port.name for port in ports] if len(arrays) > 1 else [one]
    return zip(names, arrays, strict=True)


def _field(name: str, array: NDArray[Any]) -> Field:
    if array.dtype.name not in DTYPES:
        raise DataError(
            f"Features are one of {', '.join(DTYPES)}. Received: {array.dtype} for {name!r}."
        )
    return Field(name, array.shape[1:], array.dtype.name)


def _label(name: str, array: NDArray[Any]) -> Label:
    size = None if array.ndim == 1 else int(array.shape[-1])
    return Label(name, size, integer=array.dtype.kind in "iu")
