"""``Trainer.simulate``: a run on a simulated cluster, in this process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from distkeras_grid.engine.keras_model import get_flat_weights, set_flat_weights
from distkeras_grid.engine.loading import load_engine
from distkeras_grid.engine.optimizers import skip_steps
from distkeras_grid.engine.own_objects import remember_objects
from distkeras_grid.engine.registry import current_backend
from distkeras_grid.errors import ConfigurationError, DataError
from distkeras_grid.feeding.batches import policy_of
from distkeras_grid.feeding.schema import DTYPES, Field
from distkeras_grid.feeding.shapes import (
    Port,
    check_fit,
    check_one_output,
    inputs_of,
    match,
    outputs_of,
)
from distkeras_grid.feeding.source import ArraySource, Selection, Source, weighted_by
from distkeras_grid.history import History
from distkeras_grid.rules import Rule, compression_of, rule_of
from distkeras_grid.simulation.cluster import Cluster
from distkeras_grid.simulation.keras_learners import keras_learners
from distkeras_grid.simulation.run import Simulation
from distkeras_grid.spark.dataframes import Columns, Label, as_dataframe, resolve_columns
from distkeras_grid.spark.seats import DataSummary
from distkeras_grid.spark.session import active_session
from distkeras_grid.spec import DataSpec, RunSpec
from distkeras_grid.trainers.arguments import AUTO, check_backend
from distkeras_grid.trainers.checking import check_method, complete, rule_for
from distkeras_grid.trainers.class_weights import (
    count_in_array,
    number_classes,
    settle_class_weight,
)
from distkeras_grid.trainers.compiled import compiled_copy
from distkeras_grid.trainers.compressing import compression_notes
from distkeras_grid.trainers.description import choices, described_parameters, policies
from distkeras_grid.trainers.inspection import inspect_training, naming
from distkeras_grid.trainers.labels import check_labels
from distkeras_grid.trainers.recalibration import set_statistics
from distkeras_grid.trainers.run import epoch_line
from distkeras_grid.trainers.run_status import TRAINING, RunProgress, run_progress
from distkeras_grid.trainers.specification import described_fields
from distkeras_grid.trainers.validation import collect, evaluate

if TYPE_CHECKING:
    import keras
    from numpy.typing import NDArray

    from distkeras_grid.engine.base import ModelEngine
    from distkeras_grid.trainers.request import DataRequest, RunRequest
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
        The cluster, with the seconds of a batch if these were measured.
    computing_seconds : tuple of float
        Simulated time for which each worker has computed; the rest of the time it waited [s].
    lost : int
        Number of attempts that were lost.
    spec : RunSpec
        The run as a value; it can be compared and saved.
    """

    model: keras.Model = field(repr=False)
    history: History
    cluster: Cluster
    computing_seconds: tuple[float, ...]
    lost: int
    spec: RunSpec = field(repr=False)


def simulate(request: RunRequest, cluster: Cluster, display: Any = None) -> SimulatedRun:
    """Run in simulated time; see `Trainer.simulate`.

    Parameters
    ----------
    request : RunRequest
        What is asked for.
    cluster : Cluster
        The cluster to simulate.
    display : Display, optional
        Where progress is shown; by default the terminal or the notebook.

    Raises
    ------
    GridError
        If something does not fit, and whatever ends a run.
    """
    check_backend()
    _check_engine(request.engine)
    draft, asked, source = request.draft, request.data, request.source
    _check_workers(draft.pace.num_workers, cluster)
    check_one_output(asked.class_weight, outputs_of(source.model))
    compiled = compiled_copy(source)
    model = compiled.model
    check_method(draft, request.method, model)
    _check_centers(request, model, cluster.workers)
    rows, weights = _read_training(asked, model)
    with naming("validation_data"):
        held_out = (
            None if asked.validation_data is None else _read(asked.validation_data, asked, model)[0]
        )
    data = DataSpec(features=described_fields(rows.fields), class_weight=weights)
    spec, window = complete(request, compiled, data, len(rows), cluster.workers)
    rule, fields = rule_of(spec.rule), rows.fields
    seats = _deal(
        weighted_by(rows, weights),
        cluster.workers,
        asked.seed if asked.shuffle else None,
    )
    engine = _engine(compiled.archive, source.objects, spec, rule, fields)
    # Once even if the time is given, because the engine refuses here what it cannot train.
    timed = _measure(engine, spec, seats[0], times=1 if cluster.batch_seconds else 3)
    if cluster.batch_seconds is None:
        cluster = replace(cluster, batch_seconds=timed)
    simulation = Simulation(
        cluster,
        spec,
        keras_learners(engine, cluster.workers, asked.seed if cluster.workers > 1 else None),
        seats,
        evaluate=_evaluation(model, held_out, engine.layout),
        params=policies(spec),
    )
    introduction = request.method.introduction
    said = [
        *([introduction] if introduction else []),
        *compression_notes(compression_of(spec.exchange.compression), spec.epochs),
        *choices(window, spec),
        _announced(spec, rule, cluster.batch_seconds or timed),
    ]
    with run_progress(display) as progress:
        _watch(simulation, spec, progress, said)
    set_flat_weights(model, simulation.center, engine.layout)
    if engine.layout.slots:
        skip_steps(model.optimizer, simulation.history.most_steps())
    if spec.algorithm.statistics == "recalibrate":
        _recalibrate(model, engine, spec, seats)
    remember_objects(model, source.objects)
    computed = tuple(worker.computed for worker in simulation.workers)
    return SimulatedRun(model, simulation.history, cluster, computed, simulation.lost, spec)


def _deal(rows: Source, seats: int, seed: int | None) -> list[Source]:
    """Return the rows of each seat: mixed by `seed`, or consecutive without one."""
    places = np.arange(len(rows))
    if seed is not None:
        places = np.random.default_rng(seed).permutation(places)
    return [Selection(rows, part) for part in np.array_split(places, seats)]


def _check_engine(engine: str | None) -> None:
    """Refuse another backend than that of this process, which trains all workers."""
    if engine not in (None, AUTO, here := current_backend()):
        raise ConfigurationError(
            f"A simulation trains in this process, with Keras on {here!r}. Received: engine="
            f"{engine!r}. Set KERAS_BACKEND={engine} before Keras is imported."
        )


def _check_workers(asked: int | None, cluster: Cluster) -> None:
    if asked not in (None, cluster.workers):
        raise ConfigurationError(
            f"Cluster and trainer must have the same number of workers. Received: "
            f"{cluster.workers} workers and num_workers={asked}. Leave num_workers out, or give "
            "both the same number."
        )


def _check_centers(request: RunRequest, model: keras.Model, workers: int) -> None:
    if rule_for(request.method, workers, model).traits.own_center:
        raise ConfigurationError(
            f"{request.draft.algorithm.trainer}'s workers do not affect each other, so there is "
            "nothing to simulate. Use train(), or simulate another trainer."
        )


def _engine(
    archive: bytes,
    objects: Mapping[str, Any],
    spec: RunSpec,
    rule: Rule,
    fields: tuple[Field, ...],
) -> ModelEngine:
    return load_engine(
        archive,
        custom_objects=objects,
        scaling=tuple(field.scaling for field in fields),
        block_shape=None if spec.window is None else (spec.window, spec.batch_size),
        jit=spec.algorithm.jit,
        local_steps=rule.traits.local_steps,
        momentum=rule.local_momentum,
        optimizer_state=spec.algorithm.optimizer_state,
    )


def _recalibrate(
    model: keras.Model, engine: ModelEngine, spec: RunSpec, seats: Sequence[Source]
) -> None:
    """Measure the statistics of batch normalization on all rows, in no simulated time."""
    blocks = (
        block
        for number, seat in enumerate(seats)
        for window in policy_of(spec.schedule, len(seat), number).once().windows()
        for block in seat.blocks(window.blocks)
    )
    weights = get_flat_weights(model, engine.layout)
    set_statistics(model, [engine.measure_statistics(weights, blocks)])


def _measure(engine: ModelEngine, spec: RunSpec, seat: Source, times: int) -> float:
    """Return how long a batch takes on this machine [s]."""
    first = next(policy_of(spec.schedule, len(seat), 0).windows())
    block = next(seat.blocks(first.blocks))
    # The smallest of a few times, because other work on this machine only adds to it.
    return min(engine.warm_up(block) for _ in range(times)) / block.steps


def _announced(spec: RunSpec, rule: Rule, batch_seconds: float) -> str:
    """Return the line to show before a simulated run starts."""
    window = spec.schedule.communication_window
    return (
        f"{spec.algorithm.trainer} in simulated time: {spec.rows} rows, "
        f"{spec.workers} workers, batch {spec.batch_size} each, "
        f"{batch_seconds * 1e3:.3g} ms a batch, window "
        + (f"{window} batches" if isinstance(window, int) else window)
        + described_parameters(rule)
    )


def _watch(
    simulation: Simulation, spec: RunSpec, progress: RunProgress, said: Sequence[str]
) -> None:
    """Run to the end, and show the progress in simulated time."""
    epochs, shown = simulation.history.epoch_records, 0
    progress.update(total_samples=spec.rows * spec.epochs, epochs=spec.epochs, workers=spec.workers)
    for line in said:
        progress.note(line)
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


def _evaluation(model: keras.Model, rows: Source | None, layout: WeightLayout) -> Any:
    if rows is None:
        return None

    def evaluate_center(center: Any) -> dict[str, float]:
        set_flat_weights(model, center, layout)
        return evaluate(model, rows)

    return evaluate_center


def _read_training(
    asked: DataRequest, model: keras.Model
) -> tuple[ArraySource, dict[int, float] | None]:
    """Return the training rows, and the weights of their classes."""
    rows, columns, summary = _read(asked.data, asked, model)
    weights = settle_class_weight(
        *(number_classes(asked.class_weight, columns), columns, summary, model),
        lambda: count_in_array(columns.labels[0].name, rows.labels[0]),
    )
    return rows, weights


def _read(
    data: Any, asked: DataRequest, model: keras.Model
) -> tuple[ArraySource, Columns, DataSummary]:
    """Bring the rows into this process, and refuse what the model cannot take."""
    if isinstance(data, tuple | list):
        return _from_arrays(data, model)
    spark = active_session()
    frame = as_dataframe(spark, data)
    columns = resolve_columns(frame, asked.features, asked.labels, model=model)
    check_fit(model, columns.features)
    summary = inspect_training(frame, columns, model)
    return collect(frame, columns), columns, summary


def _from_arrays(data: Any, model: keras.Model) -> tuple[ArraySource, Columns, DataSummary]:
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
    rows = ArraySource(features, labels, weights[0] if weights else None, fields=fields)
    return rows, columns, summary


def _arrays(given: Any, ports: Sequence[Port], what: str) -> tuple[NDArray[Any], ...]:
    # For a model with one, a list is the array's content.
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
    """Return arrays with the names of the model's inputs or outputs, if it has several."""
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
