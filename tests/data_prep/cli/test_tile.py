import json

import pytest

from data_prep import TileSpec, TilingSettings, UpdateResult
from data_prep.cli import tile
from data_prep.cli.tile import main
from distkeras_grid.cli.preflight import SubmittedDriver
from distkeras_grid.errors import ConfigurationError, OutputExistsError, SchemaError
from distkeras_grid.submission.command import Submission
from tests.data_prep.dataset.test_croissant import IMAGE, manifest
from tests.local_files import LocalFiles


@pytest.fixture
def called(monkeypatch):
    """The settings with which the job would have run, without Spark."""
    calls = []
    monkeypatch.setattr(tile, "start_spark", lambda *_, **__: None)
    done = UpdateResult(
        {"tiles": 0}, new=1, changed=0, unchanged=0, removed=0, tiles=0, left_out={}
    )
    monkeypatch.setattr(tile, "update_tiles", lambda settings, **_: calls.append(settings) or done)
    return calls


def test_defaults(called):
    assert main(["--input", "in", "--output", "out"]) == 0
    (settings,) = called
    assert (settings.input, settings.output, settings.spec.tile) == ("in", "out", 256)
    assert len(settings.spec.angles) == 72
    assert (settings.labels, settings.encoding, settings.on_error) == ("folder", "raw", "fail")


@pytest.mark.parametrize(("flags", "word"), [((), "gone 1"), (("--prune",), "removed 1")])
def test_images_that_are_gone_are_not_removed_without_prune(monkeypatch, capsys, flags, word):
    """Each night told again that one image was removed."""
    monkeypatch.setattr(tile, "start_spark", lambda *_, **__: None)
    done = UpdateResult({"tiles": 8}, 0, 0, 3, 1, 0, {}, copies=2)
    monkeypatch.setattr(tile, "update_tiles", lambda *_, **__: done)
    assert main(["--input", "in", "--output", "out", "--update", *flags]) == 0
    counts = f"new 0, changed 0, unchanged 3, relabelled 0, copies 2, {word}, left out 0;"
    assert counts in capsys.readouterr().out


def test_every_flag_arrives(called):
    flags = (
        "--input i --output o --tile 64 --overlap 0.25 --angles 0,45 --mode inscribed "
        "--include-original --interpolation linear --labels l.csv --split 0.7:0.3 --seed 4 "
        "--group (?P<group>a) "
        "--encoding jpeg --quality 80 --on-error skip --glob *.png --channels 1 --overwrite "
        "--page 2 --channel DAPI --z max --allow-empty --near-duplicates report --bits 12 "
        "--pixel-size 0.5um --source-pixel-size 200nm --zones z.csv --bottom-strip 60 "
        "--keep-versions 30d --report-images 40 --max-pixels 1000 --keep bg_fraction<0.9"
    )
    assert main(flags.split()) == 0
    (settings,) = called
    spec = TileSpec(
        64, 0.25, [0, 45], mode="inscribed", interpolation="linear", include_original=True
    )
    values = {
        **{"labels": "l.csv", "group": "(?P<group>a)", "split": "0.7:0.3", "seed": 4},
        **{"near_duplicates": "report", "allow_empty": True, "encoding": "jpeg", "quality": 80},
        **{"channels": "1", "on_error": "skip", "page": 2, "channel": "DAPI", "z": "max"},
        **{"bits": 12, "pixel_size": "0.5um", "source_pixel_size": "200nm", "zones": "z.csv"},
        **{"bottom_strip": 60, "max_pixels": 1000, "keep": "bg_fraction<0.9", "glob": "*.png"},
        **{"keep_versions": "30d", "overwrite": True, "report_images": 40},
    }
    assert settings.spec.to_json() == spec.to_json()
    assert settings.to_json() == TilingSettings("i", "o", spec, **values).to_json()


def test_left_out_images_are_code_7(called, monkeypatch):
    done = UpdateResult({"tiles": 0}, 1, 0, 0, 0, tiles=0, left_out={"a/0.png": "it is damaged"})
    monkeypatch.setattr(tile, "update_tiles", lambda *_, **__: done)
    assert main(["--input", "in", "--output", "out", "--on-error", "skip"]) == 7


def test_wrong_values_are_one_line_and_code_2(called, capsys):
    assert main(["--input", "i", "--output", "o", "--overlap", "1.5"]) == 2
    assert "ConfigurationError: overlap must be" in capsys.readouterr().err
    assert main(["--input", "i", "--output", "o", "--angles", "x"]) == 2
    assert called == []
    with pytest.raises(SystemExit) as stop:
        main(["--output", "o"])
    assert stop.value.code == 2


def check(folder, *flags):
    """Check as `submit` does."""
    (folder / "raw").mkdir(exist_ok=True)
    submission = Submission("job.py", [], "", master="spark://host:7077")
    paths = ("--input", f"{folder}/raw", "--output", f"{folder}/tiles")
    parsed = tile.build_parser().parse_args([*paths, *flags])
    tile.check_early(parsed, SubmittedDriver(submission, LocalFiles()))


@pytest.mark.parametrize("flags", [(), ("--update",), ("--overwrite",)])
def test_tiles_of_an_earlier_layout_are_refused_and_not_touched(tmp_path, flags):
    (tmp_path / "tiles" / "shard=0").mkdir(parents=True)
    (tmp_path / "tiles" / "_dataset.json").write_text("{}")
    before = sorted((tmp_path / "tiles").rglob("*"))
    with pytest.raises(SchemaError, match="--convert"):
        check(tmp_path, *flags)
    assert sorted((tmp_path / "tiles").rglob("*")) == before


def test_what_is_something_else_besides_is_not_replaced(tmp_path):
    (tmp_path / "tiles" / "_versions").mkdir(parents=True)
    (tmp_path / "tiles" / "_versions" / "4.json").write_text("{}")
    (tmp_path / "tiles" / "_ingest.json").write_text("")
    with pytest.raises(OutputExistsError, match="Move that elsewhere"):
        check(tmp_path, "--overwrite")


def test_what_a_killed_first_run_has_left_is_taken_up(tmp_path):
    for name in ("shard=0-20261127T113000-1f2e3d4c", "_likeness", "_versions"):
        (tmp_path / "tiles" / name).mkdir(parents=True)
        check(tmp_path)


def test_an_update_that_disagrees_with_what_is_there(tmp_path):
    (tmp_path / "tiles" / "_versions").mkdir(parents=True)
    (tmp_path / "tiles" / "_versions" / "41.json").write_text(json.dumps(manifest(IMAGE)))
    same = ("--update", "--tile", "32", "--angles", "0")
    check(tmp_path, *same)
    with pytest.raises(ConfigurationError, match="channels"):
        check(tmp_path, *same, "--channels", "1")
