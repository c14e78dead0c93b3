"""What plain ``spark-submit`` writes to HDFS."""

from __future__ import annotations

from pathlib import Path

import pytest
from hdfs import InsecureClient

from distkeras_grid.submission import run_verb
from tests.hadoop.conftest import Grid, read_json, upload_samples

pytestmark = [pytest.mark.full, pytest.mark.hadoop, pytest.mark.tensorflow]

ROOT = "/jobs"


def run(grid: Grid, verb: str, *flags: object) -> None:
    ended = grid.submit(str(run_verb.__file__), verb, *map(str, flags))
    assert ended.returncode == 0, ended.stdout[-6000:] + ended.stderr[-6000:]


@pytest.fixture(scope="module")
def tiles(grid: Grid, client: InsecureClient, samples: Path) -> str:
    """Tiles of nine images, cut in client mode."""
    upload_samples(client, samples, f"{ROOT}/images", classes=3)
    run(
        grid,
        "tile",
        *("--input", f"hdfs://{ROOT}/images", "--output", f"hdfs://{ROOT}/tiles"),
        *("--tile", 64, "--overlap", 0, "--angles", "0,90", "--split", "0.6:0.2:0.2"),
    )
    return f"hdfs://{ROOT}/tiles"


@pytest.mark.parametrize("kind", ["png", "huggingface"])
def test_exports_go_to_hdfs_by_the_tasks_themselves(
    grid: Grid, client: InsecureClient, tiles: str, kind: str
) -> None:
    output = f"{ROOT}/export-{kind}"
    run(
        grid,
        "export",
        *("--data", tiles, "--format", kind, "--split", "test", "--output", f"hdfs://{output}"),
    )
    counts = read_json(client, f"{ROOT}/tiles/_versions/0.json")["counts"]["test"]
    files = [
        f"{folder}/{name}"
        for folder, _, names in client.walk(output)
        for name in names
        if not name.startswith(("_", "."))
    ]
    assert files
    if kind == "png":
        assert len([name for name in files if name.endswith(".png")]) == sum(counts.values())
    assert all(client.status(name)["length"] > 0 for name in files)
    assert not [name for name in client.list(ROOT) if name.endswith(".tmp")]
