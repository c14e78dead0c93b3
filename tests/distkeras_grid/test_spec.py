"""A run as one value: what it refuses, and that it travels unchanged."""

from __future__ import annotations

import json
import math
import pickle

import msgspec
import numpy as np
import pytest

from distkeras_grid.errors import ConfigurationError, UnknownArgumentError
from distkeras_grid.spec import (
    AlgorithmSpec,
    CompressionSpec,
    DataSpec,
    ExchangeSpec,
    LayoutSpec,
    LimitsSpec,
    LocalSpec,
    Outliers,
    PreviousProgress,
    RuleSpec,
    RunSpec,
    ScheduleSpec,
)
from distkeras_grid.weights import Variable
from tests import specs


def make_spec(**changes) -> RunSpec:
    terms = {"statistics_size": 2, "workers": 4, "batch_size": 10, "window": 2}
    return specs.make_spec("elastic", **{**terms, **changes})


@pytest.fixture
def everything() -> RunSpec:
    """Every field has a value that is not its default."""
    return RunSpec(
        algorithm=AlgorithmSpec(
            rule=RuleSpec(name="averaging", parameters={"alpha": 5e-324, "ä": '\0"'}),
            trainer="AveragingTrainer",
            arguments={"quorum": 0.8},
            quorum=0.8,
            own_start=True,
            jit=False,
            backend="jax",
            compile={"optimizer": "sgd", "loss": None},
        ),
        layout=LayoutSpec(
            trainable_size=8,
            statistics_size=2,
            state=(Variable("iteration", (), "int64"), Variable("velocity", (8,))),
            worker_state_limit=4096,
        ),
        schedule=ScheduleSpec(
            rows=100,
            workers=4,
            batch_size=10,
            window=2,
            epochs=3,
            epochs_per_window=2,
            shuffle=False,
            seed=2**62 + 1,
            bootstrap=True,
            snapshots_per_epoch=1,
            epoch_barrier=True,
            earlier=PreviousProgress(epochs=1, version=70, folded=120, dropped=10),
            largest_share=30,
        ),
        exchange=ExchangeSpec(
            compression=CompressionSpec(name="dgc", parameters={"sparsity": 0.99}),
            outliers=Outliers(on_outlier="stop", factor=np.float32(20)),
            on_nonfinite="skip",
            servers=3,
        ),
        data=DataSpec(
            source="hdfs:///tiles",
            features=({"name": "image", "distkeras_grid": {"shape": [8, 8, 1]}},),
            labels=({"name": "label"},),
            sample_weight="weight",
            class_weight={0: 1.0, 3: 2.5},
            share="full",
            validation="hdfs:///other",
            local=LocalSpec(local_train=6, local_test=3, test_images="others"),
        ),
        limits=LimitsSpec(start_timeout=1.5, round_timeout=None, threads=2, gpu_sharing=True),
    )


def test_a_spec_travels_as_json(everything):
    assert RunSpec.from_json(json.loads(json.dumps(everything.to_json()))) == everything
    assert pickle.loads(pickle.dumps(everything)) == everything  # noqa: S301
    assert RunSpec.from_json(make_spec().to_json()) != everything


def test_no_two_sections_have_a_field_of_one_name(everything):
    names = [
        n for s in everything.__struct_fields__ for n in getattr(everything, s).__struct_fields__
    ]
    assert len(names) == len(set(names))


def test_the_fixture_leaves_no_field_at_its_default(everything):
    for name in everything.__struct_fields__:
        section = getattr(everything, name)
        for field in msgspec.structs.fields(section):
            assert getattr(section, field.name) != field.default, f"{name}.{field.name}"


def test_what_other_workers_have_trained_is_not_trained_again_but_for_a_part_of_an_epoch(
    everything,
):
    schedule = everything.schedule
    assert (schedule.epochs_before, schedule.epochs_left) == (1, 2)
    assert (schedule.repeated, schedule.samples) == (30, 330)
    assert (make_spec().schedule.epochs_left, make_spec().schedule.repeated) == (1, 0)


@pytest.mark.parametrize(
    ("section", "change"),
    [
        ("schedule", {"rows": 0}),
        ("schedule", {"window": 0}),
        ("schedule", {"seed": -1}),
        ("algorithm", {"quorum": 0.4}),
        ("algorithm", {"quorum": 1.1}),
        ("limits", {"start_timeout": 0.0}),
        ("data", {"class_weight": {0: -1.0}}),
        ("schedule", {"rows": "100"}),
        ("schedule", {"rows": 2.5}),
        ("schedule", {"rows": True}),
        ("schedule", {"window": "epoch"}),
        ("schedule", {"batchsize": 3}),
        ("algorithm", {"rule": "averaging"}),
        ("exchange", {"compression": {"name": "zip"}}),
        ("exchange", {"outliers": {"factor": 1.0}}),
        ("data", {"class_weight": {"first": 1.0}}),
        ("data", {"labels": "label"}),
        ("layout", {"state": [{"path": "a", "shape": [1.5]}]}),
        ("layout", {"state": [{"path": "a"}]}),
    ],
)
def test_json_of_another_type_or_out_of_range_is_refused_with_its_place(section, change):
    described = make_spec().to_json()
    described[section] = {**described[section], **change}
    with pytest.raises(ConfigurationError, match=section):
        RunSpec.from_json(described)


def test_a_change_of_an_unknown_field_is_refused_with_the_nearest_known_one(everything):
    with pytest.raises(UnknownArgumentError, match="did you mean 'epochs'"):
        everything.change(epoch=3)


def test_a_missing_section_is_refused(everything):
    described = everything.to_json()
    del described["schedule"]
    for wrong in (described, {"algorithm": 3}, []):
        with pytest.raises(ConfigurationError):
            RunSpec.from_json(wrong)


def test_numbers_of_numpy_inside_a_description_travel():
    spec = make_spec(compile={"optimizer": {"config": {"learning_rate": np.float32(0.5)}}})
    assert RunSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec
    with pytest.raises(ConfigurationError):
        make_spec(compile={"loss": object()}).to_json()


def test_sections_and_their_fields_are_changed_together(everything):
    changed = everything.change(limits=LimitsSpec(), start_timeout=3.0, rows=5)
    assert changed.limits == LimitsSpec(start_timeout=3.0)
    assert changed.rows == 5
    assert everything.rows == 100


def test_a_quorum_is_rounded_up_but_not_by_the_error_of_a_float():
    spec = make_spec(quorum=0.8)
    assert [spec.quorum_of(workers) for workers in (1, 2, 4, 5, 10)] == [1, 2, 4, 4, 8]


def test_no_round_timeout_is_an_infinite_one():
    assert make_spec(round_timeout=None).round_timeout == math.inf
    assert make_spec(round_timeout=2.0).round_timeout == 2.0


@pytest.mark.parametrize(
    ("change", "steps"),
    [
        ({"window": 2}, 2),
        ({"window": 50}, 3),
        ({"window": None}, 3),
        ({"window": None, "epochs": 4, "epochs_per_window": 4}, 12),
        ({"workers": 7, "window": None}, 2),
    ],
)
def test_the_longest_window(change, steps):
    assert make_spec(**change).steps_per_window() == steps
