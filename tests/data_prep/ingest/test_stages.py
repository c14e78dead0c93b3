"""How the rows of one file become batches, without Spark."""

from __future__ import annotations

import hashlib
import struct
from dataclasses import replace
from io import BytesIO

import numpy as np
import pytest
from PIL import Image

from data_prep.ingest import stages
from data_prep.ingest.plan import IngestTask
from data_prep.ingest.resize import TargetSize
from data_prep.ingest.stages import ImageReading, read_unit
from distkeras_grid.errors import ImageError

CLASSES = ("a", "b", "c")


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch):
    monkeypatch.setattr(stages, "BATCH_BYTES", 6500)


def unit(start, stop, labels, sha256="", **more):
    return IngestTask("file:/in/x", "x", "test", start, stop, tuple(labels), 7, sha256, **more)


def rows_of(content, unit, reading):
    sha256 = unit.sha256 or hashlib.sha256(content).hexdigest()
    batches = list(read_unit(content, replace(unit, sha256=sha256), reading))
    return batches, [each for batch in batches for each in batch.to_pylist()]


def test_each_image_of_an_idx_file_keeps_its_label_and_place_in_small_batches():
    items = np.arange(20 * 30 * 40, dtype=np.uint32).astype(np.uint8).reshape(20, 30, 40)
    content = b"\0\0\x08\3" + struct.pack(">3I", 20, 30, 40) + items.tobytes()
    labels = [i % 3 for i in range(4, 18)]
    reading = ImageReading("idx", TargetSize(30, 40, 1), CLASSES)
    batches, rows = rows_of(content, unit(4, 18, labels), reading)
    assert [batch.num_rows for batch in batches] == [5, 5, 4]
    assert [row["item"] for row in rows] == list(range(4, 18))
    assert [row["label"] for row in rows] == labels
    assert [row["label_name"] for row in rows] == [CLASSES[label] for label in labels]
    assert all(row["image"] == items[row["item"]].tobytes() for row in rows)
    assert {(row["source"], row["split"]) for row in rows} == {("x", "test")}


def test_records_of_cifar_10_come_in_small_batches_too():
    records = np.random.default_rng(0).integers(0, 256, (5, 3073), dtype=np.uint8)
    records[:, 0] = (0, 1, 2, 1, 0)
    reading = ImageReading("cifar10", TargetSize(32, 32, 3), CLASSES)
    batches, rows = rows_of(records.tobytes(), unit(0, 5, records[:, 0].tolist()), reading)
    assert [batch.num_rows for batch in batches] == [2, 2, 1]
    assert [row["label"] for row in rows] == [0, 1, 2, 1, 0]
    last = np.frombuffer(rows[4]["image"], np.uint8).reshape(32, 32, 3)
    np.testing.assert_array_equal(last[..., 2].ravel(), records[4, 2049:])


def test_an_image_file_is_one_row_of_the_common_look():
    stream = BytesIO()
    Image.new("RGB", (50, 20), (10, 20, 30)).save(stream, "PNG")
    reading = ImageReading("images", TargetSize(8, 8, 3), CLASSES)
    _, rows = rows_of(stream.getvalue(), unit(0, 1, [2]), reading)
    assert len(rows) == 1
    assert rows[0]["image"] == bytes([10, 20, 30]) * 64
    assert (rows[0]["label"], rows[0]["item"]) == (2, 0)
    assert "group" not in rows[0]
    grouped = replace(reading, has_groups=True)
    for group in ("S1", None):
        _, (row,) = rows_of(stream.getvalue(), unit(0, 1, [2], group=group), grouped)
        assert row["group"] == group


def test_a_file_that_has_changed_since_its_split_was_chosen_is_refused():
    """Its rows came with the label and the split of the former picture."""
    stream = BytesIO()
    Image.new("L", (50, 20), 7).save(stream, "PNG")
    reading = ImageReading("images", TargetSize(8, 8, 3), CLASSES)
    with pytest.raises(ImageError, match=r"/in/x has changed"):
        rows_of(stream.getvalue(), unit(0, 1, [2], "0" * 64), reading)
