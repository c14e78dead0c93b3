"""What other programs read of a data set, on a disk of this machine."""

from __future__ import annotations

import json

import pytest

from data_prep.dataset.croissant import FILE
from data_prep.dataset.dataset_card import write_cards
from data_prep.dataset.hugging_face import CARD
from data_prep.dataset.manifest import DataSet
from data_prep.dataset.readme_card import FILE as PAGE
from distkeras_grid.spark.storage import Storage
from tests.data_prep.dataset.test_croissant import manifest

pytestmark = pytest.mark.spark


def test_what_a_person_wrote_with_an_editor_stays(spark, tmp_path):
    """Hadoop kept a checksum beside the file, and refused to read it after an edit."""
    said: list[str] = []
    known = DataSet.from_json(manifest())
    for _ in range(2):
        write_cards(Storage(spark), tmp_path.as_uri(), known, said.append)
        assert said == []
        assert sorted(path.name for path in tmp_path.iterdir()) == sorted([CARD, FILE, PAGE])
        page = (tmp_path / PAGE).read_text()
        (tmp_path / PAGE).write_text(page.replace("## Origin", "## Origin\n\nA lake."))
        told = json.loads((tmp_path / FILE).read_text()) | {"license": "CC-BY-4.0"}
        (tmp_path / FILE).write_text(json.dumps(told))
    assert json.loads((tmp_path / FILE).read_text())["license"] == "CC-BY-4.0"
    write_cards(Storage(spark), tmp_path.as_uri(), known, said.append)
    page = (tmp_path / PAGE).read_text()
    assert page.count("A lake.") == 2
    assert "Licence: CC-BY-4.0" in page
    (tmp_path / PAGE).write_text("of somebody's own")
    write_cards(Storage(spark), tmp_path.as_uri(), known, said.append)
    assert (tmp_path / PAGE).read_text() == "of somebody's own"
    assert len(said) == 1
