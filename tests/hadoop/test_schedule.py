"""Nights on HDFS: one that is killed while it publishes, and the next, which finishes it.

The folders have the characters of a pattern in their names.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from io import BytesIO
from typing import Any

import numpy as np
import pytest
from hdfs import InsecureClient
from PIL import Image

from distkeras_grid.cli.exit_codes import ExitCode
from tests.hadoop.conftest import Grid

pytestmark = [pytest.mark.full, pytest.mark.hadoop]

NIGHT = """
import json, os, signal, sys
from data_prep import TileSpec, TilingSettings, update_tiles
from data_prep.dataset import update
from data_prep.dataset import shards
from data_prep.images.file_access import choose_opening
from distkeras_grid.spark.dataframes import read_parquet
from distkeras_grid.spark.session import build_session

class Stops(update.Storage):
    def rename(self, source, target, **more):
        if sys.argv[1:] == ["killed"] and target.endswith("/_versions/1.json"):
            os.kill(os.getpid(), signal.SIGKILL)
        super().rename(source, target, **more)

update.Storage = shards.Storage = Stops
spark = build_session("night", master="local[2]")
raw, tiles = "/night/raw {a,b}", "/night/tiles [1]"
settings = TilingSettings(raw, tiles, TileSpec(32, angles=[0]), split="0.5:0.5", update=True)
done = update_tiles(settings, spark=spark)
rows = read_parquet(spark, tiles).select("source", "source_sha256", "split", "tile_id")
print(json.dumps({
    "done": [done.new, done.changed, sorted(done.left_out)],
    "tiles": rows.count(),
    "ids": rows.distinct().count(),
    "sources": [list(row) for row in rows.drop("tile_id").distinct().collect()],
    "read": choose_opening(spark, shards.Storage(spark).resolve(raw)).kind,
}))
"""


def picture(seed: int) -> bytes:
    stream = BytesIO()
    pixels = np.random.default_rng(seed).integers(0, 256, (64, 64), dtype=np.uint8)
    Image.fromarray(pixels).save(stream, "PNG")
    return stream.getvalue()


def night(grid: Grid, ends: int, *words: str) -> Any:
    """Update the tiles in a process of its own; return what it says of them."""
    ended = grid.run(sys.executable, "-c", NIGHT, *words)
    assert ended.returncode == ends, ended.stderr
    return json.loads(ended.stdout or "null")


def test_nights(grid: Grid) -> None:
    client = InsecureClient(grid.sandbox.webhdfs, user=os.environ.get("USER", "root"))
    for seed, name in enumerate(["a/0", "a/1", "b/0", "b/1"]):
        client.write(f"/night/raw {{a,b}}/{name} [x].png", picture(seed))
    first = night(grid, ExitCode.OK)
    assert (first["done"], first["tiles"]) == ([4, 0, []], 4 * 9)
    # Tasks have opened the images themselves.
    assert first["read"] == "webhdfs"
    client.write("/night/raw {a,b}/a/new.png", picture(10))
    client.write("/night/raw {a,b}/b/0 [x].png", picture(11), overwrite=True)
    client.write("/night/raw {a,b}/b/cut.png", picture(12)[:300])
    night(grid, -signal.SIGKILL, "killed")
    # It was killed before its commit.
    assert "1.json" not in client.list("/night/tiles [1]/_versions")

    last = night(grid, ExitCode.OK)
    assert last["done"] == [1, 1, ["b/cut.png"]]
    assert last["tiles"] == last["ids"] == 5 * 9
    before = {source: (sha, split) for source, sha, split in first["sources"]}
    after = {source: (sha, split) for source, sha, split in last["sources"]}
    assert set(after) == {*before, "a/new.png"}
    changed = {source for source in before if after[source] != before[source]}
    assert changed == {"b/0 [x].png"}
    assert after["b/0 [x].png"][1] == before["b/0 [x].png"][1]
    names = client.list("/night/tiles [1]")
    with client.read("/night/tiles [1]/_versions/1.json") as stream:
        listed = json.load(stream)["shards"]
    assert [name.partition("-")[0] for name in listed] == ["shard=1", "shard=2"]
    # Those of the killed night stay for a week.
    shards = [name for name in names if name.startswith("shard=")]
    assert set(listed) < set(shards)
    beside = {"_likeness", "_reports", "_versions"}
    beside |= {"_README.md", "_croissant.json", ".huggingface.yaml"}
    assert set(names) - set(shards) <= beside
