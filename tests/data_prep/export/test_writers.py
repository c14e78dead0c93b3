from __future__ import annotations

import io
import json
import tarfile

import pytest

from data_prep.export.samples import Sample
from data_prep.export.writers import FOLDERS, TFRECORD, WEBDATASET, folder_name, write

SAMPLES = [
    Sample("k1", b"first", "png", {"label": 1, "label_name": "a/b", "angle": 0.5}),
    Sample("k2", b"second", "png", {"label": 0, "label_name": "dark", "pixel_size": None}),
]


def test_folders_are_named_after_the_classes():
    assert list(write(FOLDERS, SAMPLES, "test", 7)) == [
        ("test/a%2Fb/k1.png", b"first"),
        ("test/dark/k2.png", b"second"),
    ]


def test_a_shard_has_image_class_and_columns_of_each_sample_side_by_side():
    ((name, content),) = write(WEBDATASET, SAMPLES, "train", 7)
    assert name == "train-00007.tar"
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        files = {member.name: archive.extractfile(member).read() for member in archive}
    assert list(files) == [f"{key}.{end}" for key in ("k1", "k2") for end in ("png", "cls", "json")]
    assert (files["k1.png"], files["k1.cls"]) == (b"first", b"1")
    assert json.loads(files["k2.json"]) == SAMPLES[1].columns
    assert list(write(WEBDATASET, SAMPLES, "train", 7)) == [(name, content)]


def test_a_file_of_records_has_the_names_of_tensorflows_image_data_sets():
    ((name, content),) = write(TFRECORD, SAMPLES, "train", 0)
    assert name == "train-00000.tfrecord"
    assert content.count(b"image/encoded") == content.count(b"image/class/text") == 2
    assert b"pixel_size" not in content


@pytest.mark.parametrize("kind", [FOLDERS, WEBDATASET, TFRECORD])
def test_a_task_without_rows_writes_no_file(kind):
    assert list(write(kind, [], "train", 0)) == []


def test_no_two_classes_share_a_folder():
    names = ["a", "a/b", "a%2Fb", "_a", ".a", "%5Fa", "a_b", ".."]
    folders = [folder_name(name) for name in names]
    assert len(set(folders)) == len(names)
    assert not any("/" in folder or folder[0] in "._" for folder in folders)
