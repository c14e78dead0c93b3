"""What a stop tells that it leaves behind."""

from __future__ import annotations

from pathlib import Path

from distkeras_grid.sandbox.leftovers import Leftovers, sizes


def test_the_largest_first_and_what_lies_in_hdfs_below() -> None:
    staged = {"/user/ada/.sparkStaging/application_17_0001": 500_000_000}
    left = Leftovers({"logs": 12_000, "hdfs": 3_000_000_000}, staged, "HDFS is silent")
    files, first, second = list(left.lines())[:2], *list(left.lines())[2:4]
    assert [line.split() for line in files] == [["3.0", "GB", "hdfs"], ["12", "kB", "logs"]]
    assert "HDFS" in first
    assert second.split() == ["500", "MB", "/user/ada/.sparkStaging/application_17_0001"]
    assert "HDFS is silent" in list(left.lines())[-1]


def test_what_is_missing_or_empty_is_left_out_and_holes_do_not_count(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "empty").mkdir()
    (tmp_path / "a" / "b" / "block").write_bytes(b"x" * 100_000)
    with (tmp_path / "a" / "sparse").open("wb") as file:
        file.truncate(10**9)
    (tmp_path / "a" / "link").symlink_to(tmp_path / "nowhere")
    (tmp_path / "state.json").write_text("{}")
    names = ("a", "empty", "missing", "state.json")
    found = sizes(tmp_path / name for name in names)
    assert set(found) == {"a", "state.json"}
    assert 100_000 <= found["a"] < 10**6
