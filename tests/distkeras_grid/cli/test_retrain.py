"""What ``retrain`` decides; that it trains is in ``tests/jobs/test_schedule.py``."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime

import pytest

from distkeras_grid.checkpoints import Driver
from distkeras_grid.cli.retrain import (
    Latest,
    _add_run,
    build_parser,
    delete_run,
    is_leftover,
    main,
    new_sources,
    outdated,
    parse,
    read_latest,
    train_flags,
)
from distkeras_grid.cli.trainer_options import trainer_arguments
from distkeras_grid.dataset.manifest import TILED, ImageRecord, Manifest, decode_manifest
from distkeras_grid.errors import BusyError, SchemaError
from distkeras_grid.spark.checkpoints import CheckpointStore
from distkeras_grid.spark.storage import Storage
from tests.interleaving import at_once

RUNS = ["2026-11-07T060000Z", "2026-11-14T060000Z", "2026-11-21T060000Z"]
MINIMUM = ["--data", "tiles", "--model", "m:build", "--output", "runs"]
LATEST = Latest(RUNS[-1], 4)
MODEL = f"runs/{RUNS[-1]}/model.keras"


def test_the_oldest_runs_go_and_nothing_else():
    names = [*RUNS[:2], "latest.json", "thesis", "2026-11-01", "_x"]
    assert outdated(names, 1) == RUNS[:2]
    assert outdated(names, 2) == RUNS[:1]
    assert outdated(names, 3) == outdated(names, 8) == outdated(names, None) == []


def test_the_new_run_stays_though_the_clock_was_set_back():
    """It was the oldest by its name, was deleted, and the next run had no model to start from."""
    of_a_fast_clock = ["2036-01-01T000000Z", *RUNS]
    assert outdated(of_a_fast_clock, 2) == RUNS
    assert outdated(of_a_fast_clock, 1) == [*RUNS, "2036-01-01T000000Z"]


def test_only_our_leftovers_are_ours():
    hexes = "0" * 32
    for name in (f"_{RUNS[0]}.{hexes}.tmp", f"_{RUNS[0]}.{hexes}.old"):
        assert is_leftover(name, RUNS[0])
        assert not is_leftover(name.replace(RUNS[0], RUNS[2]), RUNS[1])
    for name in (RUNS[0], f"_mine.{hexes}.tmp", f"_{RUNS[0]}.tmp", "latest.json"):
        assert not is_leftover(name, RUNS[2])


def tiled(name, update, split="train"):
    return ImageRecord(f"{name}.png", TILED, 4, sha256=name, split=split, update=update)


def test_new_is_what_was_tiled_after_the_latest_run():
    sources = (tiled("a", 0), tiled("b", 5), tiled("c", 5, "test"), tiled("d", 4))
    manifest = Manifest(sources=(*sources, ImageRecord("e.png", "left out")), last_update=5)
    assert new_sources(manifest, "train", LATEST) == ["b"]
    assert new_sources(manifest, None, LATEST) == ["b", "c"]
    assert new_sources(manifest, "train", None) == ["a", "b", "d"]


@pytest.mark.parametrize("change", [{"set_aside": "blurred"}, {"tiles": 0}, {"status": "removed"}])
def test_an_image_without_rows_is_not_new(change):
    """An exclusion made an image new: the week read no row, and ended with an error."""
    source = tiled("a", 5)
    for told, new in ((source, ["a"]), (replace(source, **change), [])):
        assert new_sources(Manifest(sources=(told,), last_update=5), "train", LATEST) == new


def test_all_is_new_in_a_data_set_that_was_made_anew():
    """Its numbers began at 0 again: for as many nights nothing was new."""
    manifest = Manifest(sources=(tiled("a", 0),), last_update=0)
    assert new_sources(manifest, "train", LATEST) == ["a"]


@pytest.mark.parametrize(
    "change",
    [
        {"run": "../../home"},
        {"run": "2026-11-21T060000Z\n"},
        {"run": "os:system"},
        {"run": None},
        {"update": "4"},
    ],
)
def test_a_hostile_pointer_is_refused(change):
    told = {"run": RUNS[-1], "model": MODEL, "update": 4}
    assert parse(json.dumps(told), Latest, "latest.json") == LATEST
    with pytest.raises(SchemaError):
        parse(json.dumps({**told, **change}), Latest, "latest.json")


def test_the_model_of_a_pointer_is_not_believed():
    """It was imported and called, where it said module:function."""
    told = {"run": RUNS[-1], "model": "os:getcwd", "update": 4}
    latest = parse(json.dumps(told), Latest, "latest.json")
    flags = build_parser().parse_args(MINIMUM)
    assert train_flags(flags, "runs/new", latest, ["d"]).model == MODEL


APPLICATION = "application_17_0001"
FIRST, SECOND = Driver(APPLICATION), Driver(APPLICATION, attempt=2)


@pytest.fixture
def night(monkeypatch):
    """Two nights of data, runs that are trained by writing their names, and a clock."""
    sources = [
        {"source": f"{n}", "status": "tiled", "tiles": 4, "split": "train", "update": n}
        | {"sha256": str(n) * 64}
        for n in (1, 2)
    ]
    disk = {
        "/tiles/_versions/1.json": json.dumps({"last_update": 1, "sources": sources[:1]}).encode()
    }
    files = at_once(disk)
    files.trained, files.meanwhile = [], []

    def training(flags):
        files.trained.append((flags.output, flags.model, flags.where))
        if files.meanwhile:
            files.meanwhile.pop()()
        if flags.output == files.dies_at:
            raise SystemExit
        files.write_text(f"{flags.output}/run.json", "{}", overwrite=True)

    class Clock(datetime):
        hour = 0

        @classmethod
        def now(cls, zone):
            cls.hour += 1
            return datetime(2026, 11, 21, cls.hour, tzinfo=zone)

    monkeypatch.setattr("distkeras_grid.cli.train.train", training)
    monkeypatch.setattr("distkeras_grid.cli.retrain.datetime", Clock)
    files.dies_at = None
    files.both = json.dumps({"last_update": 2, "sources": sources})
    files.make_dirs("/runs")
    return files


def retrain_on(files, driver, *more):
    given = ["--data", "/tiles", "--model", "m:build", "--output", "/runs", *more]
    _add_run(files, build_parser().parse_args(given), driver)


ONE, TWO = "/runs/2026-11-21T010000Z", "/runs/2026-11-21T020000Z"


def test_another_attempt_of_an_application_has_the_run_of_the_one_before(night):
    """It had another name, so a run that was whole was trained again."""
    night.dies_at = ONE
    with pytest.raises(SystemExit):
        retrain_on(night, FIRST)
    # Meanwhile another image has been tiled: the rows must be those of the checkpoint.
    night.write_text("/tiles/_versions/2.json", night.both)
    with pytest.raises(SystemExit):
        retrain_on(night, SECOND)
    night.dies_at = None
    retrain_on(night, Driver(APPLICATION, attempt=3), "--keep", "1")
    assert night.trained == 3 * [(ONE, "m:build", None)]
    assert json.loads(night.read_text("/runs/latest.json"))["update"] == 1
    assert night.list_names("/runs") == [ONE.rpartition("/")[2], "latest.json"]
    # The next night sees the other image.
    retrain_on(night, Driver("application_17_0002"))
    assert night.trained[3:] == [
        (TWO, f"{ONE}/model.keras", f"source_sha256 in ('{'2' * 64}')"),
    ]


def test_of_two_commands_at_once_the_first_that_ends_adds_its_run(night):
    """The other one says so, and leaves the pointer and what the first has begun alone."""
    night.write_text(f"/runs/_2026-11-13T060000Z.{'0' * 32}.tmp/model.keras", "of a killed one")
    night.meanwhile = [lambda: retrain_on(night, Driver("application_17_0002"))]
    with pytest.raises(BusyError, match="one command at a time"):
        retrain_on(night, FIRST)
    assert json.loads(night.read_text("/runs/latest.json"))["run"] == TWO.rpartition("/")[2]
    assert night.list_names("/runs") == [
        *(uri.rpartition("/")[2] for uri in (ONE, TWO)),
        "latest.json",
    ]


def test_a_command_that_came_too_late_leaves_nothing_that_its_next_attempt_would_add(night):
    """YARN starts an attempt that ended with an error again: it took the run for its own."""
    second = Driver("application_17_0002")
    night.meanwhile = [lambda: retrain_on(night, Driver("application_17_0003"))]
    with pytest.raises(BusyError):
        retrain_on(night, second)
    retrain_on(night, Driver("application_17_0002", attempt=2))
    assert json.loads(night.read_text("/runs/latest.json"))["run"] == TWO.rpartition("/")[2]
    assert "_begun.json" not in night.list_names("/runs")


def test_an_attempt_that_dies_when_its_run_is_whole_is_ended_by_the_next(night):
    write = night.write_text

    def dies(uri, text, **how):
        if uri.endswith("latest.json"):
            raise SystemExit
        write(uri, text, **how)

    night.write_text = dies
    with pytest.raises(SystemExit):
        retrain_on(night, FIRST)
    assert night.exists(f"{ONE}/run.json")
    night.write_text = write
    retrain_on(night, SECOND)
    # Its own model is not the one from which it starts.
    assert night.trained == 2 * [(ONE, "m:build", None)]
    assert json.loads(night.read_text("/runs/latest.json"))["run"] == ONE.rpartition("/")[2]


@pytest.mark.parametrize("told", ["{", "[]", '{"run": "../home"}'])
@pytest.mark.parametrize("driver", [SECOND, Driver("application_17_0002", attempt=2)])
def test_what_another_application_has_begun_is_begun_anew(night, told, driver):
    night.dies_at = ONE
    with pytest.raises(SystemExit):
        retrain_on(night, FIRST)
    if driver is SECOND:
        night.write_text("/runs/_begun.json", told, overwrite=True)
    retrain_on(night, driver)
    assert [output for output, *_ in night.trained] == [ONE, TWO]


CHECKPOINTS = ("--checkpoint-dir", "/checkpoints/")


@pytest.fixture
def saving(night, monkeypatch):
    """A night whose runs write a checkpoint, and tell which data they read."""
    night.saved = []

    def training(flags):
        folder = trainer_arguments(flags)["checkpoint_dir"]
        night.saved.append((folder, flags.data_version, flags.where))
        CheckpointStore(night, folder, Driver("any")).check_new()
        night.write_text(f"{folder}/checkpoint-00000001/manifest.json", "{}")
        if night.meanwhile:
            night.meanwhile.pop()()
        if flags.output == night.dies_at:
            raise SystemExit
        night.write_text(f"{flags.output}/run.json", "{}", overwrite=True)

    def resuming(flags):
        folder = flags.checkpoint_dir
        if not night.exists(folder):
            return training(flags)
        night.saved.append((folder, flags.data_version, flags.where))
        return night.write_text(f"{flags.output}/run.json", "{}", overwrite=True)

    monkeypatch.setattr(
        "distkeras_grid.cli.train.train",
        lambda flags: (resuming if flags.resume else training)(flags),
    )
    return night


def folders(files):
    return files.list_names("/checkpoints") if files.exists("/checkpoints") else []


def named(uri):
    return uri.replace("/runs", "/checkpoints")


@pytest.mark.parametrize("given", [CHECKPOINTS, ("--set", "checkpoint_dir=/checkpoints")])
@pytest.mark.parametrize("more", [(), ("--resume",)])
def test_the_checkpoints_of_a_night_that_has_ended_do_not_hinder_the_next(saving, given, more):
    """They were those of another run, so the second night was refused."""
    saving.write_text("/checkpoints/mine.txt", "mine")
    retrain_on(saving, FIRST, *given, *more)
    assert folders(saving) == ["mine.txt"]
    saving.write_text("/tiles/_versions/2.json", saving.both)
    retrain_on(saving, Driver("application_17_0002"), *given, *more)
    assert [folder for folder, *_ in saving.saved] == [named(ONE), named(TWO)]
    assert folders(saving) == ["mine.txt"]


@pytest.fixture
def killed(saving):
    """The first night was killed after a checkpoint; then another image was tiled."""
    saving.dies_at = ONE
    with pytest.raises(SystemExit):
        retrain_on(saving, FIRST, *CHECKPOINTS)
    version = {"number": 1, "hash": "a" * 64}
    version |= dict.fromkeys(("created", "replaced"), "2026-11-21T01:00:00+00:00")
    version |= {"shards": [], "tiles": 0}
    told = {**json.loads(saving.both), "history": [version]}
    saving.write_text("/tiles/_versions/2.json", json.dumps(told))
    return saving


def test_a_night_that_was_killed_is_gone_on_with_on_the_data_it_began_with(killed):
    retrain_on(killed, Driver("application_17_0002"), *CHECKPOINTS, "--resume")
    assert killed.saved[1:] == [(named(ONE), 1, None)]
    assert json.loads(killed.read_text("/runs/latest.json"))["update"] == 1
    assert folders(killed) == []
    # The next night sees the other image.
    retrain_on(killed, Driver("application_17_0003"), *CHECKPOINTS, "--resume")
    assert killed.saved[2:] == [(named(TWO), 2, f"source_sha256 in ('{'2' * 64}')")]


def test_a_night_on_the_present_data_is_gone_on_with(killed):
    version = json.loads(killed.both) | {"last_update": 1}
    killed.write_text("/tiles/_versions/2.json", json.dumps(version), overwrite=True)
    retrain_on(killed, Driver("application_17_0002"), *CHECKPOINTS, "--resume")
    assert killed.saved[1:] == [(named(ONE), 1, None)]


@pytest.mark.parametrize("why", ["not asked", "no checkpoint", "version gone", "whole"])
def test_a_night_that_cannot_be_gone_on_with_is_begun_anew(killed, why):
    """Its checkpoints stay: without a sign of life nobody can tell that it was killed."""
    if why == "no checkpoint":
        killed.delete(f"{named(ONE)}/checkpoint-00000001")
        killed.make_dirs(named(ONE))
    elif why == "version gone":
        killed.write_text("/tiles/_versions/2.json", killed.both, overwrite=True)
    elif why == "whole":
        killed.write_text(f"{ONE}/run.json", "{}")
    resume = () if why == "not asked" else ("--resume",)
    retrain_on(killed, Driver("application_17_0002"), *CHECKPOINTS, *resume)
    assert [folder for folder, *_ in killed.saved[1:]] == [named(TWO)]
    assert folders(killed) == [ONE.rpartition("/")[2]]


def test_of_two_commands_at_once_the_first_that_ends_leaves_the_other_its_checkpoints(saving):
    """They were deleted while it trained, as if it had been killed; so was what it published."""
    half = f"/runs/_{ONE.rpartition('/')[2]}.{'0' * 32}.tmp"

    def second():
        saving.write_text(f"{half}/model.keras", "that the first is writing")
        retrain_on(saving, Driver("application_17_0002"), *CHECKPOINTS)
        assert folders(saving) == [ONE.rpartition("/")[2]]
        assert saving.exists(half)

    saving.meanwhile = [second]
    with pytest.raises(BusyError):
        retrain_on(saving, FIRST, *CHECKPOINTS)
    assert len(saving.saved) == 2


@pytest.mark.parametrize("digest", ["' or 1=1 or ''='", "a" * 63, "A" * 64, "a" * 64 + "\n", 7])
def test_a_digest_that_is_none_is_refused(digest):
    """It became a part of an SQL expression."""
    source = {"source": "a.png", "status": "tiled", "sha256": "a" * 64}
    assert decode_manifest(json.dumps({"sources": [source]}), "m").sources[0].sha256 == "a" * 64
    source["sha256"] = digest
    with pytest.raises(SchemaError):
        decode_manifest(json.dumps({"sources": [source]}), "m")


def test_the_first_run_takes_the_model_of_the_flags_and_later_ones_the_last():
    flags = build_parser().parse_args([*MINIMUM, "--where", "label < 2"])
    first = train_flags(flags, "runs/new", None, ["d"])
    assert (first.model, first.where, first.output) == ("m:build", "label < 2", "runs/new")
    later = train_flags(flags, "runs/new", LATEST, ["d", "e"])
    assert (later.model, later.where) == (
        MODEL,
        "source_sha256 in ('d', 'e') and (label < 2)",
    )
    flags.where = None
    assert train_flags(flags, "runs/new", LATEST, ["d", "e"]).where == "source_sha256 in ('d', 'e')"
    flags.rows = "all"
    assert train_flags(flags, "runs/new", LATEST, ["d", "e"]).where is None


@pytest.mark.parametrize(
    ("flags", "told"), [(["--overwrite"], "--overwrite"), (["--keep", "0"], "from 1")]
)
def test_flags_that_cannot_be_meant(flags, told, capsys):
    assert main([*MINIMUM, *flags]) == 2
    assert told in capsys.readouterr().err


def test_the_help_text_offers_no_flag_that_is_refused():
    text = build_parser().format_help()
    assert "--overwrite" not in text
    assert "new or empty" not in text


@pytest.mark.spark
def test_data_that_do_not_tell_what_is_new(spark, tmp_path, capsys):
    (tmp_path / "_versions").mkdir()
    (tmp_path / "_versions" / "0.json").write_text(json.dumps({"sources": []}))
    flags = ["--data", str(tmp_path), "--model", "json:loads", "--output", str(tmp_path / "runs")]
    assert main(flags) == 2
    assert "distkeras-grid tile" in capsys.readouterr().err


@pytest.mark.spark
def test_a_pointer_that_was_lost_is_replaced_by_the_newest_run(spark, tmp_path):
    storage = Storage(spark)
    assert read_latest(storage, str(tmp_path), []) is None
    found = read_latest(storage, "runs", ["thesis", *RUNS])
    assert found == Latest(RUNS[-1], -1)
    (tmp_path / "latest.json").write_text(
        json.dumps({"run": RUNS[-1], "model": MODEL, "update": 4})
    )
    assert read_latest(storage, str(tmp_path), ["latest.json"]) == LATEST


@pytest.mark.spark
def test_a_run_with_something_of_the_users_stays(spark, tmp_path, capsys):
    for name in RUNS[:2]:
        (tmp_path / name).mkdir()
        for file in ("model.keras", "history.jsonl", "run.json"):
            (tmp_path / name / file).write_text("x")
    (tmp_path / RUNS[0] / "notes.txt").write_text("x")
    for name in RUNS[:2]:
        delete_run(Storage(spark), str(tmp_path / name))
    assert sorted(path.name for path in tmp_path.iterdir()) == [RUNS[0]]
    assert "holds notes.txt" in capsys.readouterr().out
