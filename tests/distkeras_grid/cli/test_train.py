"""Flags of ``train`` and the model they name, and bad input to it on real Spark."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from distkeras_grid.cli.preflight import check_trainer
from distkeras_grid.cli.train import (
    build_parser,
    call_model_function,
    check_local_sets,
    load_model,
    local_sets,
    main,
    read_data,
    save,
)
from distkeras_grid.cli.trainer_options import parse_settings, trainer_arguments
from distkeras_grid.errors import ConfigurationError, NoSpaceError
from distkeras_grid.feeding.schema import Field
from distkeras_grid.trainers import saved_run

PIXELS = Field("image", (8, 8, 3), classes=("basalt", "granite"))
MINIMUM = ["--data", "tiles", "--model", "m:build", "--output", "run"]


def arguments_of(*flags):
    return trainer_arguments(build_parser().parse_args([*MINIMUM, *flags]))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("n=8", 8),
        ("n=1e-3", 0.001),
        ("n=True", True),
        ("n=None", None),
        ("n=('accuracy', 'mae')", ("accuracy", "mae")),
        ("n=sgd", "sgd"),
        ("n='sgd'", "sgd"),
        ("n=a=b", "a=b"),
        ("n=", ""),
    ],
)
def test_settings_are_python_literals_or_text(text, value):
    assert parse_settings([text]) == {"n": value}


@pytest.mark.parametrize("text", ["n", "=8", "two words=8", "--n=8", ""])
def test_a_setting_without_a_name_is_refused(text):
    with pytest.raises(ConfigurationError, match="name=value"):
        parse_settings([text])


@pytest.mark.parametrize(("text", "every"), [("90", 90.0), ("epoch", "epoch")])
def test_checkpoints_have_flags(text, every):
    flags = ["--checkpoint-dir", "here", "--checkpoint-every", text, "--resume"]
    assert arguments_of(*flags) == {
        "checkpoint_dir": "here",
        "checkpoint_every": every,
        "resume": "auto",
    }
    with pytest.raises(ConfigurationError):
        check_trainer("DOWNPOUR", arguments_of("--resume"), None, None)
    with pytest.raises(ConfigurationError):
        check_trainer("DOWNPOUR", arguments_of(*flags[:3], "often"), None, None)


LOCAL = ["--local-sets", "iterations=18, local_train=6000,local_test=2700,test_images=others"]


def flags_of(*flags):
    return build_parser().parse_args([*MINIMUM, *flags])


def test_local_sets_are_those_that_the_flags_name():
    flags = flags_of(*LOCAL, "--split", "all", "--mirror", "/a", "--mirror", "http://b")
    check_local_sets(flags)
    found = local_sets("rows", flags)
    assert (found.data, found.iterations, found.local_train, found.local_test) == (
        *("rows", 18, 6000, 2700),
    )
    assert (found.test_images, found.split, list(found.mirrors)) == (
        *("others", "all", ["/a", "http://b"]),
    )
    assert local_sets("rows", flags_of(*LOCAL)).split == "train"
    check_local_sets(flags_of())


@pytest.mark.parametrize(
    "flags",
    [
        [*LOCAL, "--epochs", "2"],
        [*LOCAL, "--fold", "fold_0", "--split", "train"],
        ["--mirror", "/a"],
        ["--local-sets", "iterations=18"],
        ["--local-sets", "iterations=18,local_train=60,size=4"],
        ["--local-sets", "iterations"],
        ["--local-sets", "iterations=0,local_train=60"],
        ["--local-sets", "iterations=1,local_train=60,split=a", "--split", "b"],
    ],
)
def test_what_does_not_go_with_local_sets_is_refused(flags):
    with pytest.raises(ConfigurationError, match=r"--local-sets|iterations"):
        check_local_sets(flags_of(*flags))


def test_what_nobody_gave_is_left_to_the_trainer():
    assert arguments_of() == {}


def test_flags_and_settings_together():
    assert arguments_of(
        *("--features", "image", "--workers", "3", "--epochs", "2"),
        *("--set", "loss=mse", "--set", "batch_size=4"),
    ) == {"features_col": "image", "num_workers": 3, "num_epoch": 2, "loss": "mse", "batch_size": 4}


def test_classes_have_weights_by_number():
    given = build_parser().parse_args([*MINIMUM, "--class-weight", "0=2,10=0.5"]).class_weight
    assert given == {0: 2.0, 10: 0.5}


def test_several_columns_are_named_in_the_order_of_the_model():
    assert arguments_of("--features", "image,age", "--label", "kind") == {
        "features_col": ["image", "age"],
        "label_col": "kind",
    }


def test_the_same_argument_as_flag_and_as_setting_is_refused():
    with pytest.raises(ConfigurationError, match=r"--batch-size and --set batch_size=\.\.\."):
        arguments_of("--batch-size", "4", "--set", "batch_size=8")


def test_a_model_function_gets_what_it_takes_of_shape_and_classes():
    seen = []

    def build(classes, shape, width=7):
        seen.append((classes, shape, width))

    call_model_function("m:build", build, PIXELS)
    call_model_function("m:build", lambda: seen.append("nothing"), PIXELS)
    call_model_function("m:build", lambda **rest: seen.append(rest), PIXELS)
    assert seen == [(2, (8, 8, 3), 7), "nothing", {}]


def test_a_model_function_that_needs_more_is_refused():
    def build(shape, classes, width):
        raise AssertionError(shape, classes, width)

    with pytest.raises(ConfigurationError, match=r"needs classes, width; column 'x' has"):
        call_model_function("m:build", build, Field("x", (4,)))
    with pytest.raises(ConfigurationError, match="needs width; column 'image' has"):
        call_model_function("m:build", build, PIXELS)
    with pytest.raises(ConfigurationError, match="several feature columns"):
        call_model_function("m:build", build, None)


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("model", "takes FILE.keras or module:function"),
        ("a/model.h5", r"load_model\('a/model.h5'\).save\('a/model.keras'\)"),
        ("no_such_module:build", "No module named 'no_such_module'"),
        ("json:no_such_function", "has no attribute 'no_such_function'"),
    ],
)
def test_a_model_that_is_nowhere(source, told):
    with pytest.raises(ConfigurationError, match=told):
        load_model(source, None, PIXELS)


@pytest.mark.tensorflow
def test_a_file_that_is_no_model():
    files = SimpleNamespace(read_bytes={"hdfs:///m.keras": b"PK, but no archive"}.get)
    with pytest.raises(ConfigurationError, match="Keras cannot load the model"):
        load_model("hdfs:///m.keras", files, PIXELS)


@pytest.mark.parametrize(
    ("copy", "told"),
    [
        (Path("/here/run"), "the run is kept on this machine in /here/run; copy it from there"),
        (NoSpaceError("nor there"), "no copy of the run could be kept on this machine: nor there"),
    ],
)
def test_a_run_that_cannot_be_saved_is_kept_here(monkeypatch, copy, told):
    def full(*_, **__):
        raise NoSpaceError("no space")

    trainer = SimpleNamespace(model="model", history="history", run={}, save=full)
    keep_copy = Mock(side_effect=[copy])
    monkeypatch.setattr(saved_run, "keep_copy", keep_copy)
    with pytest.raises(NoSpaceError, match="no space") as raised:
        save(trainer, flags_of())
    assert raised.value.__notes__ == [told]
    keep_copy.assert_called_once_with("model", "history", {})


# -- on Spark -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def data(spark, tmp_path_factory):
    path = str(tmp_path_factory.mktemp("cli") / "data")
    frame = spark.range(40).selectExpr(
        "transform(sequence(0, 3), i -> cast((id * 7 + i) % 5 as float)) as features",
        "cast(id % 2 as int) as label",
        "if(id < 30, 'train', 'test') as split",
    )
    frame.write.partitionBy("split").parquet(path)
    return path


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    import keras

    keras.utils.set_random_seed(1)
    net = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2, activation="softmax")])
    net.compile("sgd", "sparse_categorical_crossentropy", metrics=["accuracy"])
    path = tmp_path_factory.mktemp("model") / "model.keras"
    net.save(path)
    return str(path)


def train(*flags, data, model, output):
    return main(
        ["--data", data, "--model", model, "--output", str(output), "--workers", "1", *flags]
    )


@pytest.mark.full
@pytest.mark.spark
@pytest.mark.tensorflow
def test_a_run_is_written_and_not_replaced_unasked(data, model, tmp_path, capsys):
    output = tmp_path / "run"
    flags = ("--split", "train", "--set", "progress=False", "--epochs", "2", "--seed", "1")
    assert train(*flags, data=data, model=model, output=output) == 0
    told = capsys.readouterr().out
    assert told.startswith("trained 60 samples in ")
    assert told.endswith(f"wrote {output}\n")
    written = {path.name for path in output.iterdir() if not path.name.startswith(".")}
    assert written == {"model.keras", "history.jsonl", "run.json"}
    assert json.loads((output / "run.json").read_text())["spec"]["schedule"]["seed"] == 1
    before = (output / "model.keras").stat().st_mtime_ns

    assert train(*flags, data=data, model=model, output=output) == 4
    assert "--overwrite" in capsys.readouterr().err
    assert (output / "model.keras").stat().st_mtime_ns == before
    assert train(*flags, "--overwrite", data=data, model=model, output=output) == 0
    assert (output / "model.keras").stat().st_mtime_ns > before


@pytest.mark.spark
@pytest.mark.parametrize(
    ("flags", "opened", "rows"),
    [
        (["--split", "train", "--validation-split", "test"], 1, (30, 10)),
        (["--split", "test", "--validation-split", "test"], 1, (10, 10)),
        (["--split", "train"], 1, (30, None)),
        (["--validation-split", "test"], 2, (40, 10)),
        ([], 1, (40, None)),
        (["--where", "label = 1"], 1, (20, None)),
        (["--split", "train", "--validation-split", "test", "--where", "label = 1"], 1, (15, 10)),
    ],
)
def test_splits_are_looked_for_once(spark, data, monkeypatch, flags, opened, rows):
    from distkeras_grid.spark import dataframes

    read, calls = dataframes._read_files, []
    monkeypatch.setattr(
        dataframes, "_read_files", lambda *arguments: calls.append(1) or read(*arguments)
    )
    parsed = build_parser().parse_args([*MINIMUM, "--data", data, *flags])
    found = read_data(spark, parsed)
    assert len(calls) == opened
    assert tuple(frame and frame.count() for frame in found) == rows


@pytest.mark.spark
def test_another_data_set_for_validation_stays_a_path(spark, data):
    parsed = build_parser().parse_args([*MINIMUM, "--data", data, "--validation-data", "more"])
    assert read_data(spark, parsed)[1] == "more"


@pytest.mark.spark
@pytest.mark.tensorflow
@pytest.mark.parametrize(
    ("flags", "code", "told"),
    [
        (["--features", "feature"], 3, "Did you mean 'features'?"),
        (["--split", "train", "--label", "lable"], 3, "Did you mean 'label'?"),
        (["--split", "tset"], 3, "has no split 'tset'"),
        ([], 3, "rows of test, train"),
        (["--split", "train", "--set", "batchsize=3"], 2, "did you mean 'batch_size'"),
        (["--split", "train", "--batch-size", "0"], 2, "batch_size must be"),
        (["--where", "lable = 1"], 2, "Received: 'lable = 1'"),
        (["--where", "label ="], 2, "Received: 'label ='"),
        (["--model", "json:loads"], 2, "needs s;"),
        (["--model", "platform:node"], 2, "must be a Keras 3 model"),
        (["--model", "/no/such/model.keras"], 4, "/no/such/model.keras"),
        (["--data", "/no/such/data"], 4, "/no/such/data"),
        (["--output", "hdfs://no.such.host.invalid/run"], 4, "no.such.host.invalid"),
        (["--output", "/proc/version/run"], 4, "/proc/version/run"),
        (["--output", "/dev"], 4, "/dev exists and is not a saved run"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(data, model, tmp_path, capsys, flags, code, told):
    output = tmp_path / "run"
    # The progress line says after a second that the data are looked at.
    quiet = ("--set", "progress=False")
    assert train(*quiet, *flags, data=data, model=model, output=output) == code
    error = capsys.readouterr().err
    assert told in error
    lines = error.strip().splitlines()
    # What could not be checked before the start is a line of its own.
    assert len([line for line in lines if not line.startswith("not checked before")]) == 1
    assert not output.exists()
