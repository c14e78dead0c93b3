"""This release reads tiles and runs of each earlier one, and refuses its checkpoints by name."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Collection

import numpy as np
import pytest
from packaging.version import Version

import distkeras_grid
from data_prep.cli import versions
from distkeras_grid.errors import ConfigurationError, SchemaError
from tests.fixtures.write import FOLDER, main, rows_of, trainer_of

RELEASES = sorted(
    path.name for path in FOLDER.iterdir() if re.fullmatch(r"\d+\.\d+\.\d+", path.name)
)


@pytest.fixture(params=RELEASES)
def written(request, tmp_path):
    """A copy of what a release has written, and what it said of it."""
    folder = tmp_path / "written"
    shutil.copytree(FOLDER / request.param, folder)
    return folder, json.loads((folder / "told.json").read_text())


def weights_of(model):
    return [each.ravel() for each in model.get_weights()]


def without_fixtures(version: str, changes: str, fixtures: Collection[str]) -> set[str]:
    """Return the releases that have written nothing for the later ones.

    Released is what has a heading in the changes, and this tree unless its version is one of
    development.
    """
    released = set(re.findall(r"^## \[(\d[^\]]*)\]", changes, re.MULTILINE))
    if not Version(version).is_devrelease:
        released.add(version)
    return released - set(fixtures)


@pytest.mark.parametrize(
    ("version", "changes", "missing"),
    [
        ("0.3.0.dev0", "## [Unreleased]\n", set()),
        ("0.3.0", "## [Unreleased]\n", {"0.3.0"}),
        ("0.3.0.dev0", "## [Unreleased]\n\n## [0.2.0] - 2027-01-01\n", {"0.2.0"}),
        ("0.1.0", "## [0.1.0]\n", set()),
    ],
)
def test_a_release_without_fixtures_is_noticed(version, changes, missing):
    assert without_fixtures(version, changes, ["0.1.0"]) == missing


def test_each_release_is_there_and_on_the_page(project):
    page, changes = (
        (project / name).read_text(encoding="utf-8") for name in ("UPGRADES.md", "CHANGELOG.md")
    )
    told = re.findall(r"^\| (\d+\.\d+\.\d+) \|", page, re.MULTILINE)
    assert sorted(told) == RELEASES
    version = distkeras_grid.__version__
    assert without_fixtures(version, changes, RELEASES) == set()
    # A tree that is not released is later than all that are.
    assert version in RELEASES or Version(version) > max(map(Version, RELEASES))
    assert f"`{version}`" in page


@pytest.mark.full
def test_nothing_is_written_by_a_version_of_development(monkeypatch):
    monkeypatch.setattr(distkeras_grid, "__version__", "9.0.0.dev0")
    with pytest.raises(SystemExit, match="development"):
        main()
    assert not (FOLDER / "9.0.0.dev0").exists()


@pytest.mark.full
@pytest.mark.spark
def test_tiles_are_read_and_updated(spark, written):
    from data_prep import TileSpec, TilingSettings, tile_images
    from tests.fixtures.write import SIZE, images

    folder, told = written
    with pytest.raises(SchemaError, match="--convert"):
        rows_of(folder)
    files = {path: path.stat().st_mtime_ns for path in folder.glob("tiles/shard=*/**/*")}
    assert versions.main(["--data", f"file:{folder}/tiles", "--convert"]) == 0
    assert {path: path.stat().st_mtime_ns for path in files} == files
    assert rows_of(folder).count() == told["tiles"]
    before = {tuple(row) for row in rows_of(folder).select("source", "x", "y", "split").collect()}
    images(folder / "images", 8)
    settings = TilingSettings(
        f"file:{folder}/images",
        f"file:{folder}/tiles",
        TileSpec(SIZE, overlap=0, angles=(0,)),
        split="0.7:0.3",
        seed=1,
        update=True,
    )
    tile_images(settings, spark=spark, say=lambda _: None)
    after = {tuple(row) for row in rows_of(folder).select("source", "x", "y", "split").collect()}
    assert before <= after
    train, test = distkeras_grid.read_tiles(f"file:{folder}/tiles")
    assert train.union(test).select("source").distinct().count() == 8


@pytest.mark.spark
@pytest.mark.tensorflow
def test_model_and_history_of_a_run_are_loaded(spark, written):
    folder, told = written
    run = distkeras_grid.load(f"file:{folder}/run")
    for found, expected in zip(weights_of(run.model), told["weights"], strict=True):
        np.testing.assert_array_equal(found, np.float32(expected))
    assert run.history.history["loss"] == told["loss"]
    # It names arguments that are gone.
    with pytest.raises(ConfigurationError, match="unknown field"):
        _ = run.spec


@pytest.mark.full
@pytest.mark.spark
@pytest.mark.tensorflow
def test_a_checkpoint_is_refused_by_its_format(spark, written):
    folder, _ = written
    assert versions.main(["--data", f"file:{folder}/tiles", "--convert"]) == 0
    with pytest.raises(ConfigurationError, match="Received: format 1"):
        trainer_of(folder, resume="auto").train(rows_of(folder))
