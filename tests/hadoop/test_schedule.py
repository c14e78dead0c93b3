"""Nights on HDFS: one that is killed while it publishes, and the next, which finishes it.

The folders have the characters of a pattern in their names.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BytesIO

import numpy as np
import pytest
from hdfs import InsecureClient
from PIL import Image

from tests.hadoop.conftest import Grid

pytestmark = [pytest.mark.full, pytest.mark.hadoop]

NIGHTS = """
import json, sys
from data_prep import TileSpec, TilingSettings, update_tiles
from data_prep.dataset import update
from data_prep.dataset import shards
from data_prep.images.file_access import choose_opening
from distkeras_grid.spark.dataframes import read_parquet
from distkeras_grid.spark.session import build_session

class Stops(update.Storage):
    def rename(self, source, target, **more):
        if line == "killed" and target.endswith("/_versions/1.json"):
            print("here", flush=True)
            sys.stdin.read()
        super().rename(source, target, **more)

update.Storage = shards.Storage = Stops
spark = build_session("night", master="local[2]")
spec = TileSpec(32, angles=[0])
raw, tiles = "/night/raw {a,b}", "/night/tiles [1]"
settings = TilingSettings(raw, tiles, spec, split="0.5:0.5", update=True)
for line in map(str.strip, sys.stdin):
    done = update_tiles(settings, spark=spark)
    rows = read_parquet(spark, tiles).select("source", "source_sha256", "split", "tile_id")
    print(json.dumps({
        "done": [done.new, done.changed, sorted(done.left_out)],
        "tiles": rows.count(),
        "ids": rows.distinct().count(),
        "sources": [list(row) for row in rows.drop("tile_id").distinct().collect()],
        "read": choose_opening(spark, shards.Storage(spark).resolve(raw)).kind,
    }), flush=True)
"""
DEADLINE = 600.0  # s, for all nights of one process


def picture(seed: int) -> bytes:
    stream = BytesIO()
    pixels = np.random.default_rng(seed).integers(0, 256, (64, 64), dtype=np.uint8)
    Image.fromarray(pixels).save(stream, "PNG")
    return stream.getvalue()


@contextmanager
def nights(grid: Grid) -> Iterator[Callable[[str], str]]:
    """A process that does a night for each word, and answers with a line; killed at the end."""
    with subprocess.Popen(
        [sys.executable, "-c", NIGHTS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=grid.environment(),
    ) as process:
        deadline = threading.Timer(DEADLINE, process.kill)
        deadline.start()

        def do(word: str) -> str:
            process.stdin.write(word + "\n")
            process.stdin.flush()
            return process.stdout.readline().strip()

        try:
            yield do
        finally:
            deadline.cancel()
            os.kill(process.pid, signal.SIGKILL)


def test_nights(grid: Grid) -> None:
    client = InsecureClient(grid.sandbox.webhdfs, user=os.environ.get("USER", "root"))
    for seed, name in enumerate(["a/0", "a/1", "b/0", "b/1"]):
        client.write(f"/night/raw {{a,b}}/{name} [x].png", picture(seed))
    with nights(grid) as do:
        first = json.loads(do("whole"))
        assert (first["done"], first["tiles"]) == ([4, 0, []], 4 * 9)
        # Tasks have opened the images themselves.
        assert first["read"] == "webhdfs"
        client.write("/night/raw {a,b}/a/new.png", picture(10))
        client.write("/night/raw {a,b}/b/0 [x].png", picture(11), overwrite=True)
        client.write("/night/raw {a,b}/b/cut.png", picture(12)[:300])
        assert do("killed") == "here"
    # It was killed before its commit.
    assert "1.json" not in client.list("/night/tiles [1]/_versions")

    with nights(grid) as do:
        last = json.loads(do("whole"))
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
