"""A JVM with Hadoop's own client, without a Spark session.

The client takes its configuration from ``HADOOP_CONF_DIR``, so high availability and Kerberos
work as they do for every other program of the cluster.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from distkeras_grid.errors import ClusterError, NotAuthenticatedError
from distkeras_grid.file_systems import STRANGER, meaning
from distkeras_grid.signals import is_interrupt
from distkeras_grid.spark.driver_jvm import launching, with_address
from distkeras_grid.spark.storage import Storage
from distkeras_grid.submission.spark_submit import last_lines
from distkeras_grid.tickets import Keytab

STOP_SECONDS = 30.0
# Hadoop waits 20 s for a host that does not answer, and would try it 45 times more.
ONE_CONNECT = {"spark.hadoop.ipc.client.connect.max.retries.on.timeouts": "0"}


class HadoopClient:
    """Hadoop's classes, and the configuration of this machine."""

    def __init__(self, gateway: Any) -> None:
        self.gateway = gateway
        self.jvm = gateway.jvm
        spark = self.jvm.org.apache.spark.SparkConf()
        hadoop = self.jvm.org.apache.spark.deploy.SparkHadoopUtil.get()
        self.configuration = hadoop.newConfiguration(spark)
        self.storage = Storage.of_jvm(gateway, self.configuration)


def kerberos_settings(keytab: Keytab | None) -> dict[str, str]:
    """Return the settings by which `hadoop_client` gets tickets with a keytab; none without one.

    Examples
    --------
    >>> kerberos_settings(Keytab("ada@LAB", "/ada.keytab"))
    {'spark.kerberos.principal': 'ada@LAB', 'spark.kerberos.keytab': '/ada.keytab'}
    """
    if keytab is None:
        return {}
    return {"spark.kerberos.principal": keytab.principal, "spark.kerberos.keytab": keytab.file}


@contextmanager
def hadoop_client(settings: Mapping[str, str]) -> Iterator[HadoopClient]:
    """Start a JVM, and stop it at the end."""
    from pyspark import java_gateway
    from pyspark.errors import PySparkRuntimeError

    launch: Any = java_gateway.launch_gateway
    with tempfile.TemporaryFile() as log:
        # The master in the user's settings would start more than a JVM.
        fixed = {"spark.master": "local", "spark.submit.deployMode": "client"}
        conf = _Settings({**ONE_CONNECT, **settings, **fixed})
        try:
            with launching(), with_address():
                gateway = launch(conf, {"stdout": log, "stderr": log})
        except PySparkRuntimeError as error:
            message = f"Java does not start, or refuses the settings. Received: {last_lines(log)}"
            if advice := meaning(STRANGER, message):
                raise NotAuthenticatedError(f"{message} {advice}") from error
            raise ClusterError(message) from error
        try:
            yield HadoopClient(gateway)
        except BaseException as error:
            if is_interrupt(error):
                # What it was asked may take minutes, and nobody waits for the answer any more.
                gateway.proc.kill()
            raise
        finally:
            gateway.shutdown()
            _stop(gateway.proc)


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End the JVM, which ends by itself when its standard input does.

    A JVM that does not end in time is killed. The user then sees the error or interrupt that ended
    the work, and not a timeout.
    """
    if process.stdin is not None:
        process.stdin.close()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(STOP_SECONDS)


class _Settings:
    """What ``launch_gateway`` reads from a SparkConf, which itself would need a JVM."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        self._settings = settings

    def getAll(self) -> list[tuple[str, str]]:
        return list(self._settings.items())
