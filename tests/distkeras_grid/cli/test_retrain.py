"""What ``retrain`` decides; that it trains is in ``tests/jobs/test_schedule.py``."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace

import pytest

from distkeras_grid.cli.retrain import (
    add_run,
    build_parser,
    delete_run,
    name_of,
    new_sources,
    outdated,
    parse_record,
    train_flags,
)
from distkeras_grid.dataset.manifest import TILED, ImageRecord, Manifest
from distkeras_grid.errors import ConfigurationError, PathNotFoundError, SchemaError
from tests.interleaving import at_once

RUNS = ["2026-11-07T060000Z", "2026-11-14T060000Z", "2026-11-21T060000Z"]
MINIMUM = ["--data", "tiles", "--model", "m:build", "--output", "runs"]
MODEL = f"runs/{RUNS[-1]}/model.keras"


def test_the_oldest_runs_go():
    assert outdated(RUNS, 1) == RUNS
    assert outdated(RUNS, 2) == RUNS[:2]
    assert outdated(RUNS, 4) == outdated(RUNS, 8) == outdated(RUNS, None) == []


@pytest.mark.parametrize("created", ["", "../../home", "2026-11-21T06:00:00+00:00\n", "2026-11-21"])
def test_a_version_without_a_time_gives_a_run_no_name(created):
    with pytest.raises(SchemaError, match="has no time"):
        name_of(created)


def tiled(name, update, split="train"):
    return ImageRecord(f"{name}.png", TILED, 4, sha256=name, split=split, update=update)


def test_new_is_what_was_tiled_after_the_latest_run():
    sources = (tiled("a", 0), tiled("b", 5), tiled("c", 5, "test"), tiled("d", 4))
    manifest = Manifest(sources=(*sources, ImageRecord("e.png", "left out")), last_update=5)
    assert new_sources(manifest, "train", 4) == ["b"]
    assert new_sources(manifest, None, 4) == ["b", "c"]
    assert new_sources(manifest, "train", -1) == ["a", "b", "d"]
    # It was made anew, and its numbers began at 0 again: for as many nights nothing was new.
    assert new_sources(manifest, "train", 6) == ["a", "b", "d"]


@pytest.mark.parametrize("change", [{"set_aside": "blurred"}, {"tiles": 0}, {"status": "removed"}])
def test_an_image_without_rows_is_not_new(change):
    """An exclusion made an image new: the week read no row, and ended with an error."""
    source = tiled("a", 5)
    for each, new in ((source, ["a"]), (replace(source, **change), [])):
        assert new_sources(Manifest(sources=(each,), last_update=5), "train", 4) == new


@pytest.mark.parametrize("version", ["4", {"number": "4"}, {}, [4]])
def test_a_hostile_record_of_a_run_is_refused(version):
    text = json.dumps({"data_version": {"number": 4, "hash": "x"}, "samples": 3})
    assert parse_record(text, "run.json").data_version.number == 4
    with pytest.raises(SchemaError, match=r"runs/a/run\.json is not what a run writes"):
        parse_record(json.dumps({"data_version": version}), "runs/a/run.json")


def version_of(number, sources, history=()):
    return {
        "last_update": number,
        "created": f"2026-11-21T0{number}:00:00+00:00",
        "sources": sources[:number],
        "history": list(history),
    }


@pytest.fixture
def night():
    """Two nights of data, of which the second is not there yet."""
    sources = [
        {"source": f"{n}", "status": "tiled", "tiles": 4, "split": "train", "update": n}
        | {"sha256": str(n) * 64}
        for n in (1, 2)
    ]
    first = version_of(1, sources)
    kept = {"number": 1, "hash": "a" * 64, "created": first["created"], "tiles": 0, "shards": []}
    files = at_once({"/tiles/_versions/1.json": json.dumps(first).encode()})
    second = version_of(2, sources, [kept | {"replaced": "2026-11-21T02:00:00+00:00"}])
    files.second, files.without_history = json.dumps(second), json.dumps(second | {"history": []})
    files.make_dirs("/runs")
    return files


def commit_second(files, text=None):
    files.write_text("/tiles/_versions/2.json", text or files.second)


@pytest.fixture
def trained(night, monkeypatch):
    """The flags of each training, which writes a checkpoint and its run, or is killed between."""
    calls = []
    night.killed, night.meanwhile = False, None

    def training(flags):
        calls.append(flags)
        if flags.checkpoint_dir:
            manifest = f"{flags.checkpoint_dir}/checkpoint-00000001/manifest.json"
            night.write_text(manifest, "{}", overwrite=True)
        if (during := night.meanwhile) is not None:
            night.meanwhile = None
            during()
        if night.killed:
            raise SystemExit
        version = {"data_version": {"number": flags.data_version}}
        night.write_text(f"{flags.output}/run.json", json.dumps(version))

    monkeypatch.setattr("distkeras_grid.cli.train.train", training)
    return calls


def retrain_on(files, *more, runs="/runs"):
    words = ["--data", "/tiles", "--model", "m:build", "--output", runs, *more]
    add_run(files, build_parser().parse_args(words))


ONE, TWO = "2026-11-21T010000Z", "2026-11-21T020000Z"
OF_TWO = f"source_sha256 in ('{'2' * 64}')"


def test_each_version_has_one_run_which_starts_from_the_last(night, trained):
    for _ in range(2):
        retrain_on(night)
    commit_second(night)
    for _ in range(2):
        retrain_on(night, "--keep", "1")
    assert [(each.output, each.model, each.where, each.data_version) for each in trained] == [
        (f"/runs/{ONE}", "m:build", None, 1),
        (f"/runs/{TWO}", f"/runs/{ONE}/model.keras", OF_TWO, 2),
    ]
    assert night.list_names("/runs") == [TWO]


def test_data_that_are_not_there_or_do_not_tell_what_is_new_are_refused(night, trained):
    with pytest.raises(PathNotFoundError):
        add_run(night, build_parser().parse_args([*MINIMUM, "--data", "/lost"]))
    night.write_text("/tiles/_versions/1.json", '{"sources": []}', overwrite=True)
    with pytest.raises(ConfigurationError, match="distkeras-grid tile"):
        retrain_on(night)


def test_a_split_that_is_misspelt_is_refused(night, trained):
    """No image was new in it: the week ended with exit code 0, for ever."""
    with pytest.raises(SchemaError, match="trian"):
        retrain_on(night, "--split", "trian")
    assert not trained


@pytest.mark.parametrize("first_to_end", [1, 2])
def test_of_two_commands_at_once_the_one_that_sees_more_images_is_the_newest(
    night, trained, first_to_end
):
    def second():
        commit_second(night)
        retrain_on(night)

    if first_to_end == 2:
        night.meanwhile = second
        retrain_on(night)
    else:
        # The one that sees both nights begins first, and the other is done meanwhile.
        night.meanwhile = lambda: night.write_text(
            f"/runs/{ONE}/run.json", json.dumps({"data_version": {"number": 1}})
        )
        second()
    assert night.list_names("/runs") == [ONE, TWO]
    # Neither has started from the other.
    assert {each.model for each in trained} == {"m:build"}


CHECKPOINTS = ("--checkpoint-dir", "/checkpoints/")
#: The checkpoints of the runs in /runs.
OWN = f"/checkpoints/{hashlib.sha256(b'/runs').hexdigest()[:12]}"


def folders(files):
    return files.list_names(OWN) if files.exists(OWN) else []


@pytest.mark.parametrize("flag", [CHECKPOINTS, ("--set", "checkpoint_dir=/checkpoints")])
def test_the_checkpoints_of_a_run_that_has_ended_do_not_hinder_the_next(night, trained, flag):
    """They were those of another run, so the second night was refused."""
    night.write_text("/checkpoints/mine.txt", "mine")
    retrain_on(night, *flag)
    commit_second(night)
    retrain_on(night, *flag)
    own = [each.checkpoint_dir for each in trained]
    assert own == [f"{OWN}/{ONE}", f"{OWN}/{TWO}"]
    assert [each.settings for each in trained] == [[], []]
    assert folders(night) == []
    assert night.exists("/checkpoints/mine.txt")


@pytest.fixture
def killed(night, trained):
    """The first night was killed after a checkpoint."""
    night.killed = True
    with pytest.raises(SystemExit):
        retrain_on(night, *CHECKPOINTS)
    night.killed = False
    return night


@pytest.mark.parametrize("tiled_meanwhile", [False, True])
def test_a_night_that_was_killed_is_gone_on_with_on_the_data_it_began_with(
    killed, trained, tiled_meanwhile
):
    if tiled_meanwhile:
        commit_second(killed)
    retrain_on(killed, *CHECKPOINTS, "--resume")
    assert (trained[1].output, trained[1].data_version) == (f"/runs/{ONE}", 1)
    assert killed.list_names("/runs") == [ONE]
    assert folders(killed) == []
    if tiled_meanwhile:
        # The next night sees the other image.
        retrain_on(killed, *CHECKPOINTS, "--resume")
        assert (trained[2].data_version, trained[2].where) == (2, OF_TWO)


def test_a_version_that_a_clock_made_too_early_is_refused(night, trained):
    """Its run was none of the newest, so each later command trained it again, or deleted it."""
    retrain_on(night)
    commit_second(night, night.second.replace("2026-11-21T02:00:00", "2026-11-20T02:00:00"))
    with pytest.raises(SchemaError, match="A clock was wrong"):
        retrain_on(night)
    assert len(trained) == 1


def test_another_folder_of_runs_on_the_same_data_has_checkpoints_of_its_own(killed, trained):
    """Its run went on from the other one's checkpoint."""
    retrain_on(killed, *CHECKPOINTS, "--resume", runs="/other")
    assert trained[1].checkpoint_dir != trained[0].checkpoint_dir
    assert folders(killed) == [ONE]


def test_checkpoints_of_a_run_whose_driver_was_killed_when_it_was_complete_are_deleted(
    night, trained
):
    retrain_on(night, *CHECKPOINTS)
    night.write_text(f"{OWN}/{ONE}/checkpoint-00000001/manifest.json", "{}")
    retrain_on(night, *CHECKPOINTS)
    assert (len(trained), folders(night)) == (1, [])


@pytest.mark.parametrize("why", ["not asked", "no checkpoint", "version gone", "older than a run"])
def test_a_night_that_cannot_be_gone_on_with_is_begun_anew(killed, trained, why):
    """Its checkpoints stay: without a sign of life nobody can tell that it was killed."""
    commit_second(killed, killed.without_history if why == "version gone" else None)
    if why == "no checkpoint":
        killed.delete(f"{OWN}/{ONE}/checkpoint-00000001")
        killed.make_dirs(f"{OWN}/{ONE}")
    elif why == "older than a run":
        killed.write_text("/runs/2026-11-21T013000Z/run.json", '{"data_version": {"number": 1}}')
    retrain_on(killed, *CHECKPOINTS, *(() if why == "not asked" else ("--resume",)))
    assert [each.data_version for each in trained[1:]] == [2]
    assert folders(killed) == [ONE]


def test_the_first_run_takes_the_model_of_the_flags_and_later_ones_the_last():
    flags = build_parser().parse_args([*MINIMUM, "--where", "label < 2"])
    first = train_flags(flags, None, ["d"], {"output": "runs/new"})
    assert (first.model, first.where, first.output) == ("m:build", "label < 2", "runs/new")
    later = train_flags(flags, MODEL, ["d", "e"], {})
    assert (later.model, later.where) == (MODEL, "source_sha256 in ('d', 'e') and (label < 2)")
    flags.where = None
    assert train_flags(flags, MODEL, ["d", "e"], {}).where == "source_sha256 in ('d', 'e')"
    flags.rows = "all"
    assert train_flags(flags, MODEL, ["d", "e"], {}).where is None


def test_the_help_text_offers_no_flag_that_is_refused():
    text = build_parser().format_help()
    assert "--overwrite" not in text
    assert "--data-version" not in text
    assert "new or empty" not in text


def test_a_run_with_something_of_the_users_stays(capsys):
    files = at_once({f"/runs/{name}/run.json": b"x" for name in RUNS[:2]})
    files.write_text(f"/runs/{RUNS[0]}/notes.txt", "x")
    for name in RUNS[:2]:
        delete_run(files, f"/runs/{name}")
    assert files.list_names("/runs") == [RUNS[0]]
    assert "holds notes.txt" in capsys.readouterr().out
