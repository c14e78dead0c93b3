"""``distkeras-grid doctor`` on this machine."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from distkeras_grid.cli import doctor
from distkeras_grid.cli.doctor import count_kernels, count_weights, has_ticket, main, model_size
from distkeras_grid.cli.exit_codes import ExitCode
from distkeras_grid.errors import ConfigurationError, PathNotFoundError
from distkeras_grid.model_parallel.communication_cost import Traffic
from distkeras_grid.spark.memory import DAEMONS_MB, ROWS_MB, ModelSize
from distkeras_grid.spark.storage import Storage

CORE_SITE = """<configuration><property>
<name>hadoop.security.authentication</name><value>kerberos</value>
</property></configuration>"""


@pytest.fixture(autouse=True)
def plain_shell(monkeypatch):
    for name in ("HADOOP_CONF_DIR", "YARN_CONF_DIR", "PYSPARK_GATEWAY_PORT"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.spark
def test_a_line_each_and_a_count(spark, tmp_path, capsys):
    assert main(["--workers", "2", "--model", "1M", "--storage", str(tmp_path)]) == ExitCode.OK
    lines = capsys.readouterr().out.splitlines()
    subjects = [line.split()[1] for line in lines[:-1]]
    told = "hadoop java session slots speculation allocation backend executors server encryption"
    assert subjects == [*told.split(), "storage", "memory", "network"]
    assert all(line.startswith(("ok ", "warn ")) for line in lines[:-1])
    # Locally nothing leaves the host, whatever the address of the driver.
    assert lines[subjects.index("encryption")].startswith("ok ")
    assert lines[-1].startswith("0 bad, ")
    assert "4 MB of weights x 2 workers" in lines[-2]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.spark
def test_the_arithmetic_of_several_servers(spark, capsys):
    assert main(["--workers", "2", "--model", "100M", "--servers", "4"]) == ExitCode.OK
    lines = capsys.readouterr().out.splitlines()
    (told,) = [line for line in lines if line.split()[1] == "servers"]
    assert "each of 4 has 100 MB" in told


@pytest.mark.spark
@pytest.mark.parametrize("kind", ["stages", "towers", "devices"])
def test_the_arithmetic_of_one_model_over_several_tasks(spark, capsys, kind):
    shape = ["--batch-size", "10", "--inputs", "1000", "--outputs", "500"]
    if kind == "devices":
        shape += ["--divided-weights", "30k"]
    shape += ["--window", "4", "--batch-seconds", "0.5"]
    assert main([f"--{kind}", "2", "--model", "1M", *shape]) == ExitCode.OK
    lines = {line.split()[1]: line for line in capsys.readouterr().out.splitlines()[:-1]}
    divided = 30_000 if kind == "devices" else 0
    traffic = Traffic(kind, 2, 10**6, 10, 1000, 500, window=4, divided=divided)
    assert f"2 {kind}: {traffic.batch_bytes / 1e6:.3g} MB a batch of 10 rows" in lines["network"]
    assert f"{traffic.mean_bytes / 0.5 / 1e6:.3g} MB/s" in lines["network"]
    assert lines["network"].startswith("ok ")
    assert "2 workers take about" in lines["memory"]
    # Two tasks, and one worker of the parameter server.
    model = ModelSize(10**6, stages=2 if kind == "stages" else 1, part_bytes=traffic.task_bytes)
    assert f"{model.driver_mb(1):.0f}" in lines["memory"]
    assert f"about {2 * (model.worker_mb + ROWS_MB) + DAEMONS_MB:.0f} MB" in lines["memory"]
    assert main([f"--{kind}", "64", "--model", "1M", *shape]) == ExitCode.CLUSTER


@pytest.mark.parametrize(
    "wrong",
    [
        ["--stages", "2"],
        ["--stages", "2", "--inputs", "3"],
        ["--stages", "2", "--towers", "2"],
        ["--devices", "2", "--inputs", "3", "--outputs", "3", "--workers", "2"],
        ["--towers", "2", "--inputs", "3", "--outputs", "3", "--servers", "2"],
        ["--servers", "0"],
        ["--stages", "2", "--inputs", "3", "--outputs", "3", "--batch-seconds", "0"],
        ["--stages", "2", "--inputs", "3", "--outputs", "3", "--window", "0"],
        ["--workers", "2", "--window", "4"],
        ["--workers", "2", "--batch-seconds", "4"],
        # Of all weights only those of the divided layers travel.
        ["--devices", "2", "--inputs", "3", "--outputs", "3"],
        ["--devices", "2", "--inputs", "3", "--outputs", "3", "--model", "138M"],
        ["--towers", "2", "--inputs", "3", "--outputs", "3", "--divided-weights", "1M"],
        ["--devices", "2", "--inputs", "3", "--outputs", "3", "--divided-weights", "many"],
    ],
)
def test_flags_that_do_not_fit_each_other_are_refused(wrong):
    with pytest.raises(SystemExit) as caught:
        main(wrong)
    assert caught.value.code == ExitCode.USAGE


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


@pytest.mark.parametrize(("status", "line"), [("1", "finds no valid ticket"), (None, "no klist")])
def test_a_cluster_with_kerberos_wants_a_ticket(monkeypatch, tmp_path, capsys, status, line):
    """klist ends with 1 where it finds no ticket; here a program of that name does."""
    for name in ("core-site.xml", "yarn-site.xml"):
        (tmp_path / name).write_text(CORE_SITE)
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    programs = tmp_path / "bin"
    programs.mkdir()
    os.symlink(_java(), programs / "java")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(programs))
    if status is not None:
        klist = programs / "klist"
        klist.write_text(f"#!{sys.executable}\nraise SystemExit({status})\n")
        klist.chmod(0o755)
    found = list(doctor._before_spark(doctor.build_parser().parse_args(["--master", "yarn"])))
    assert [finding.subject for finding in found] == ["hadoop", "kerberos"]
    assert line in found[-1].text
    assert has_ticket() is (None if status is None else False)


def test_a_klist_that_does_not_end_tells_nothing(monkeypatch, tmp_path):
    """A cache of tickets in another process may not answer."""
    klist = tmp_path / "klist"
    klist.write_text(f"#!{sys.executable}\nimport time\ntime.sleep(60)\n")
    klist.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(doctor, "KLIST_SECONDS", 0.2)
    assert has_ticket() is None


def _java() -> str:
    import shutil

    home = os.environ.get("JAVA_HOME")
    return str(shutil.which("java", path=f"{home}/bin" if home else None))


@pytest.mark.tensorflow
@pytest.mark.spark
@pytest.mark.parametrize(("optimizer", "slots"), [("adam", 2), ("sgd", None)])
def test_a_model_is_counted_without_keras(spark, tmp_path, optimizer, slots):
    import keras

    layers = [keras.Input((30,)), keras.layers.Dense(40), keras.layers.BatchNormalization()]
    model = keras.Sequential([*layers, keras.layers.Dense(2)])
    model.compile(optimizer, "mse")
    model.optimizer.build(model.trainable_variables)
    path = Path(tmp_path, "model.keras")
    model.save(path)
    assert count_weights(path.read_bytes())[0] == model.count_params()
    found = model_size(str(path), Storage(spark))
    # A plain SGD keeps two numbers in all, which is none for each weight.
    assert found == ModelSize(model.count_params(), 0 if slots is None else slots)


@pytest.mark.tensorflow
def test_kernels_that_can_be_divided_are_counted_without_keras(tmp_path):
    import keras

    layers = keras.layers
    inner = keras.Sequential(
        [keras.Input((8, 8, 6)), layers.Conv2D(4, 3), layers.DepthwiseConv2D(3)]
    )
    model = keras.Sequential(
        [
            keras.Input((10, 10, 2)),
            layers.Conv2D(6, 3, name="first"),
            inner,
            layers.SeparableConv2D(4, 2),
            layers.Conv2DTranspose(3, 2),
            layers.Flatten(),
            layers.Dense(500),
        ]
    )
    model.compile("adam", "mse")
    model.optimizer.build(model.trainable_variables)
    path = Path(tmp_path, "model.keras")
    model.save(path)
    assert count_kernels(path.read_bytes()) == 9 * 2 * 6 + 9 * 6 * 4 + 9 * 4
    assert count_kernels(path.read_bytes()) < model.count_params()


@pytest.mark.spark
def test_a_size_is_a_number_or_a_file(spark, tmp_path):
    storage = Storage(spark)
    assert model_size(None, storage) == ModelSize()
    assert model_size("1.5M", storage).weights == 1_500_000
    assert model_size("70000", storage).weights == 70_000
    with pytest.raises(PathNotFoundError):
        model_size(str(tmp_path / "no.keras"), storage)
    (tmp_path / "text").write_text("no archive")
    with pytest.raises(ConfigurationError, match=r"nor a \.keras archive"):
        model_size(str(tmp_path / "text"), storage)
