"""Changed tables on files of this machine, without Spark."""

from __future__ import annotations

import json

import pytest

from data_prep.dataset.commit import require_head
from data_prep.dataset.croissant import FILE
from data_prep.dataset.edit import publish_tables
from data_prep.dataset.hugging_face import CARD
from data_prep.dataset.readme_card import FILE as PAGE
from tests.data_prep.dataset.test_croissant import IMAGE, OTHER, manifest
from tests.local_files import LocalFiles


@pytest.fixture
def root(tmp_path):
    content = {**manifest(IMAGE, OTHER), "last_shard": 7, "last_update": 3}
    (tmp_path / "_versions").mkdir()
    (tmp_path / "_versions" / "3.json").write_text(json.dumps(content))
    return tmp_path


def publish_unchanged(root, say=pytest.fail):
    files = LocalFiles()
    publish_tables(files, str(root), require_head(files, str(root)), None, say)


def test_who_changes_nothing_describes_what_a_killed_run_did_not(root):
    """Other programs were told of the version before, until something changed."""
    (root / CARD).write_text("stale")
    before = (root / "_versions" / "3.json").read_text()
    publish_unchanged(root)
    assert (root / CARD).read_text() != "stale"
    for name in (FILE, PAGE):
        assert "f" * 64 in (root / name).read_text()
    assert (root / "_versions" / "3.json").read_text() == before
    assert {path.name for path in root.iterdir()} == {"_versions", CARD, FILE, PAGE}


def test_a_licence_that_a_person_wrote_is_on_the_page_and_a_page_of_their_own_stays(root):
    publish_unchanged(root)
    told = json.loads((root / FILE).read_text()) | {"license": "CC-BY-4.0"}
    (root / FILE).write_text(json.dumps(told))
    publish_unchanged(root)
    assert json.loads((root / FILE).read_text())["license"] == "CC-BY-4.0"
    assert (root / PAGE).read_text().count("Licence: CC-BY-4.0") == 1
    (root / PAGE).write_text("of somebody's own")
    said = []
    publish_unchanged(root, said.append)
    assert ((root / PAGE).read_text(), len(said)) == ("of somebody's own", 1)


def test_a_file_that_says_the_same_is_not_written(root):
    publish_unchanged(root)
    names = (CARD, FILE, PAGE)
    written = {name: (root / name).stat().st_mtime_ns for name in names}
    publish_unchanged(root)
    assert {name: (root / name).stat().st_mtime_ns for name in names} == written
