from __future__ import annotations

import os
import subprocess
import xml.etree.ElementTree as ET
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from distkeras_grid.sandbox.configuration import Ports, SandboxLayout, environment, files, hdfs_site
from distkeras_grid.spark.memory import driver_overhead_mb, executor_overhead_mb
from distkeras_grid.submission.yarn_sites import find_resourcemanager
from distkeras_grid.webhdfs.addresses import find_address, parse_path

PORTS = Ports(1, 2, 3, 4, 5, 6, 7)
LAYOUT = SandboxLayout(Path("/grid"))
# What a user of another cluster has set; both go before HADOOP_CONF_DIR.
PRODUCTION = {"WEBHDFS_URL": "http://prod:9870", "YARN_CONF_DIR": "/etc/hadoop/conf"}


def properties(text: str) -> dict[str, str]:
    return {
        str(each.findtext("name")): str(each.findtext("value"))
        for each in ET.fromstring(text).iter("property")
    }


def written(layout: SandboxLayout = LAYOUT) -> dict[Path, str]:
    return files(PORTS, layout, datanodes=2, memory_mb=4096, pyspark=Path("/site/pyspark"))


def test_every_known_port_is_told_to_somebody() -> None:
    text = "".join(written().values())
    assert all(f"localhost:{port}<" in text for port in (1, 2, 3, 4, 5, 6, 7))


def test_containers_that_take_more_than_they_asked_for_are_killed() -> None:
    yarn = properties(written()[LAYOUT.client / "yarn-site.xml"])
    assert yarn["yarn.nodemanager.pmem-check-enabled"] == "true"
    assert yarn["yarn.nodemanager.resource.memory.enforced"] == "false"
    assert yarn["yarn.nodemanager.resource.memory-mb"] == "4096"


def test_a_block_has_a_copy_on_each_of_two_datanodes_and_on_three_of_five() -> None:
    counts = [hdfs_site(PORTS, LAYOUT, count)["dfs.replication"] for count in (1, 2, 5)]
    assert counts == ["1", "2", "3"]


def test_sparks_own_logging_is_left_alone() -> None:
    # Spark takes any log4j2.properties that lies in a configuration folder of its users.
    log4j = [path for path in written() if path.name == "log4j2.properties"]
    assert [path.parent for path in log4j] == [LAYOUT.daemons]
    assert LAYOUT.daemons != LAYOUT.client


@pytest.mark.parametrize("root", [LAYOUT.root, Path("/home/o'hara/a b; exit 7 $HOME")])
def test_a_shell_gets_the_variables_that_a_program_gets(root: Path, tmp_path: Path) -> None:
    layout = SandboxLayout(root)
    (tmp_path / "environment.sh").write_text(written(layout)[root / "environment.sh"])
    ran = subprocess.run(
        ["/bin/sh", "-c", ". ./environment.sh && exec env -0"],
        cwd=tmp_path,
        check=True,
        capture_output=True,
        text=True,
        timeout=20,
        env={**os.environ, **PRODUCTION},
    )
    told = dict(each.split("=", 1) for each in ran.stdout.split("\0") if each)
    expected = environment(layout)
    assert {name: told[name] for name in expected} == expected


def test_variables_of_another_cluster_do_not_lead_there(tmp_path: Path) -> None:
    """`rm` reached the other one, from a shell and from a notebook."""
    layout = SandboxLayout(tmp_path / "sandbox")
    (tmp_path / "yarn-site.xml").write_text(
        "<configuration><property><name>yarn.resourcemanager.webapp.address</name>"
        "<value>prod:8088</value></property></configuration>"
    )
    layout.client.mkdir(parents=True)
    for path, text in written(layout).items():
        if path.parent == layout.client:
            path.write_text(text)
    variables = {**PRODUCTION, "YARN_CONF_DIR": str(tmp_path), **environment(layout)}
    found = find_address(parse_path("/raw"), environment=variables)
    assert [urlsplit(url).hostname for url in found.urls] == ["localhost"]
    yarn = find_resourcemanager(environment=variables)
    assert {urlsplit(url).hostname for url in yarn.urls} == {"localhost"}


def test_spark_finds_its_jars_where_they_lie() -> None:
    defaults = written()[LAYOUT.client / "spark-defaults.conf"]
    assert "spark.yarn.jars local:/site/pyspark/jars/*\n" in defaults


def test_plain_spark_submit_asks_for_the_memory_that_python_needs() -> None:
    lines = written()[LAYOUT.client / "spark-defaults.conf"].splitlines()
    found = dict(line.split(" ", 1) for line in lines)
    assert found["spark.executor.memoryOverhead"] == f"{executor_overhead_mb()}m"
    assert found["spark.driver.memoryOverhead"] == f"{driver_overhead_mb()}m"
