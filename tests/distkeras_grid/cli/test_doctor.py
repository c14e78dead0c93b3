"""``distkeras-grid doctor`` on this machine."""

from __future__ import annotations

import pytest

from distkeras_grid.cli.doctor import main
from distkeras_grid.cli.exit_codes import ExitCode


@pytest.fixture(autouse=True)
def plain_shell(monkeypatch):
    for name in ("HADOOP_CONF_DIR", "YARN_CONF_DIR", "PYSPARK_GATEWAY_PORT"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.spark
def test_a_line_each_and_a_count(spark, tmp_path, capsys):
    assert main(["--workers", "2", "--model", "1M", "--storage", str(tmp_path)]) == ExitCode.OK
    lines = capsys.readouterr().out.splitlines()
    subjects = [line.split()[1] for line in lines[:-1]]
    told = "hadoop session slots speculation allocation backend executors server encryption"
    assert subjects == [*told.split(), "storage"]
    assert all(line.startswith(("ok ", "warn ")) for line in lines[:-1])
    # Locally nothing leaves the host, whatever the address of the driver.
    assert lines[subjects.index("encryption")].startswith("ok ")
    assert lines[-1].startswith("0 bad, ")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.spark
def test_all_that_is_bad_is_told_and_the_exit_code_says_so(spark, tmp_path, capsys):
    (tmp_path / "file").write_text("no folder")
    flags = ["--workers", "9", "--storage", str(tmp_path / "file" / "runs")]
    assert main([*flags, "--host", "192.0.2.77"]) == ExitCode.CLUSTER
    lines = capsys.readouterr().out.splitlines()
    bad = [line.split()[1] for line in lines if line.startswith("BAD ")]
    assert bad == ["slots", "server", "storage"]
    (server,) = [line for line in lines if line.split()[1] == "server"]
    assert "192.0.2.77" in server
    assert "spark.driver.bindAddress" in server
    assert lines[-1].startswith("3 bad, ")


def test_without_java_spark_is_not_started(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert main([]) == ExitCode.CLUSTER
    said = capsys.readouterr().out
    assert f"JAVA_HOME={tmp_path} has no bin/java" in said
    assert "Spark was not started" in said


def test_yarn_needs_its_configuration(monkeypatch, tmp_path, capsys):
    assert main(["--master", "yarn"]) == ExitCode.CLUSTER
    assert "HADOOP_CONF_DIR is not set" in capsys.readouterr().out
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path / "nowhere"))
    assert main(["--master", "yarn"]) == ExitCode.CLUSTER
    assert "has no core-site.xml and no yarn-site.xml" in capsys.readouterr().out
