"""Links whose target is not there, on a disk of this machine and without Spark."""

from __future__ import annotations

from fnmatch import fnmatch

from data_prep.links import broken_links, lost_images


class Files:
    def __init__(self, scheme="file:"):
        self.scheme = scheme

    def resolve(self, uri):
        return f"{self.scheme}{uri}"

    def matches(self, glob, name):
        return fnmatch(name, glob)


def test_links_without_a_target_are_told(tmp_path):
    """They were neither tiled nor told."""
    disk = tmp_path / "disk"
    (disk / "b").mkdir(parents=True)
    (disk / "b" / "0.png").write_text("x")
    raw = tmp_path / "raw"
    (raw / "a").mkdir(parents=True)
    (raw / "x.zarr").mkdir()
    for link, target in {
        "a/good.png": disk / "b" / "0.png",
        "a/gone.png": "nowhere.png",
        "a/gone.txt": "nowhere.txt",
        "a/_hidden.png": "nowhere.png",
        "a/circle.png": "circle.png",
        "x.zarr/0": "nowhere",
        "again": raw,
        "b": disk / "b",
        "c": tmp_path / "unmounted",
        "d": tmp_path / "unmounted",
    }.items():
        (raw / link).symlink_to(target)
    (disk / "b" / "1.png").symlink_to("nowhere")
    links = broken_links(str(raw))
    assert set(links) == {"a/gone.png", "a/gone.txt", "a/circle.png", "b/1.png", "c", "d"}
    assert links["a/gone.png"] == "nowhere.png"
    lost = lost_images(Files(), str(raw), "*.png", ["c/0.png", "a/good.png"])
    assert set(lost) == {"a/gone.png", "a/circle.png", "b/1.png", "c"}
    assert lost_images(Files("hdfs://node:8020"), str(raw), "*.png") == {}
    assert broken_links(str(raw / "a" / "good.png")) == broken_links(str(raw / "none")) == {}
