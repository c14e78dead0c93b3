"""The configuration files of Hadoop's daemons and their users, as functions of addresses."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeAlias
from xml.sax.saxutils import escape

import msgspec

HOST = "localhost"

# Below the ports that systems hand out to whoever asks for any: 32768 on Linux, 49152 on macOS.
PORTS = range(20000, 32768)

# Megabytes of what YARN hands out; a request is rounded up to a multiple of the smallest.
SMALLEST_CONTAINER_MB = 256


Port: TypeAlias = Annotated[int, msgspec.Meta(ge=0, lt=2**16)]


@dataclass(frozen=True)
class Ports:
    """The ports that others must know; daemons choose the rest."""

    namenode: Port  # Port of ``hdfs://``
    namenode_http: Port  # Port of WebHDFS and the NameNode's page
    # resourcemanager and scheduler and tracker and admin: Ports of YARN's clients, application
    # masters, NodeManagers and administrators
    resourcemanager: Port
    scheduler: Port
    tracker: Port
    admin: Port
    resourcemanager_http: Port  # Port of YARN's REST interface and page


class SandboxLayout:
    """Folders and files of a sandbox, all below one folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.client = root / "conf"  # HADOOP_CONF_DIR and SPARK_CONF_DIR of its users
        # Of the daemons alone; Spark would take a log4j2.properties beside core-site.xml
        self.daemons = root / "daemons"
        self.logs = root / "logs"  # One file for each daemon, one folder for each application
        self.hdfs = root / "hdfs"
        self.containers = root / "yarn"  # Where YARN's containers work
        self.scratch = root / "tmp"  # Temporary files of the daemons
        self.environment = root / "environment.sh"  # What a shell sources to use the sandbox
        self.state = root / "sandbox.json"
        self.lock = root / "lock"  # Held by the command that starts or stops daemons

    def namenode(self) -> Path:
        """Return where the names are kept."""
        return self.hdfs / "names"

    def datanode(self, number: int) -> Path:
        """Return where the blocks of a DataNode are kept."""
        return self.hdfs / f"blocks-{number}"


def core_site(ports: Ports, layout: SandboxLayout) -> dict[str, str]:
    """Return ``core-site.xml``."""
    return {
        "fs.defaultFS": f"hdfs://{HOST}:{ports.namenode}",
        "hadoop.tmp.dir": str(layout.scratch),
    }


def hdfs_site(ports: Ports, layout: SandboxLayout, datanodes: int) -> dict[str, str]:
    """Return ``hdfs-site.xml``."""
    return {
        "dfs.namenode.name.dir": layout.namenode().as_uri(),
        "dfs.namenode.rpc-address": f"{HOST}:{ports.namenode}",
        "dfs.namenode.http-address": f"{HOST}:{ports.namenode_http}",
        # The address of a later one is given on its command line.
        "dfs.datanode.data.dir": layout.datanode(0).as_uri(),
        "dfs.datanode.address": f"{HOST}:0",
        "dfs.datanode.http.address": f"{HOST}:0",
        "dfs.datanode.ipc.address": f"{HOST}:0",
        "dfs.datanode.hostname": HOST,
        "dfs.namenode.datanode.registration.ip-hostname-check": "false",
        "dfs.replication": str(min(3, datanodes)),
        # A dead DataNode is noticed after 2 x recheck + 10 x heartbeat: 12 s, not ten minutes.
        "dfs.heartbeat.interval": "1",
        "dfs.namenode.heartbeat.recheck-interval": "1000",
        # A single node has nobody to wait for once its blocks are there.
        "dfs.namenode.safemode.extension": "0",
    }


def yarn_site(ports: Ports, layout: SandboxLayout, memory_mb: int) -> dict[str, str]:
    """Return ``yarn-site.xml``."""
    return {
        "yarn.resourcemanager.hostname": HOST,
        "yarn.resourcemanager.address": f"{HOST}:{ports.resourcemanager}",
        "yarn.resourcemanager.scheduler.address": f"{HOST}:{ports.scheduler}",
        "yarn.resourcemanager.resource-tracker.address": f"{HOST}:{ports.tracker}",
        "yarn.resourcemanager.admin.address": f"{HOST}:{ports.admin}",
        "yarn.resourcemanager.webapp.address": f"{HOST}:{ports.resourcemanager_http}",
        "yarn.nodemanager.hostname": HOST,
        "yarn.nodemanager.address": f"{HOST}:0",
        "yarn.nodemanager.localizer.address": f"{HOST}:0",
        "yarn.nodemanager.webapp.address": f"{HOST}:0",
        "yarn.nodemanager.local-dirs": str(layout.containers),
        "yarn.nodemanager.log-dirs": str(layout.logs / "applications"),
        "yarn.nodemanager.resource.memory-mb": str(memory_mb),
        "yarn.nodemanager.resource.cpu-vcores": "8",
        "yarn.scheduler.minimum-allocation-mb": str(SMALLEST_CONTAINER_MB),
        "yarn.scheduler.maximum-allocation-mb": str(memory_mb),
        # A container that takes more than it asked for is killed, as on the users' clusters. With
        # the default of `enforced` the check leaves that to cgroups, and nobody is killed.
        "yarn.nodemanager.pmem-check-enabled": "true",
        "yarn.nodemanager.resource.memory.enforced": "false",
        "yarn.nodemanager.vmem-check-enabled": "false",
        "yarn.nodemanager.container-monitor.interval-ms": "1000",
        "yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage": "99.5",
        # `yarn logs` shows them; and without it a NodeManager takes 10 s more to end.
        "yarn.log-aggregation-enable": "true",
        # So long, and 1.25 s more, a NodeManager that is stopped waits for its applications.
        "yarn.nodemanager.process-kill-wait.ms": "500",
        # A client that finds no ResourceManager says so within seconds, not a quarter of an hour.
        "yarn.resourcemanager.connect.max-wait.ms": "20000",
        "yarn.resourcemanager.connect.retry-interval.ms": "1000",
    }


def capacity_scheduler() -> dict[str, str]:
    """Return ``capacity-scheduler.xml``: one queue."""
    return {
        "yarn.scheduler.capacity.root.queues": "default",
        "yarn.scheduler.capacity.root.default.capacity": "100",
        "yarn.scheduler.capacity.root.default.maximum-capacity": "100",
        # With the default, 0.1, a second application waits for its master.
        "yarn.scheduler.capacity.maximum-am-resource-percent": "0.5",
    }


def spark_defaults(pyspark: Path) -> dict[str, str]:
    """Return ``spark-defaults.conf``."""
    return {
        "spark.yarn.jars": f"local:{pyspark}/jars/*",
        # Without it masters and executors bind the machine's outer address.
        "spark.yarn.appMasterEnv.SPARK_LOCAL_IP": "127.0.0.1",
        "spark.executorEnv.SPARK_LOCAL_IP": "127.0.0.1",
        "spark.yarn.appMasterEnv.PYSPARK_PYTHON": sys.executable,
        # Plain spark-submit asks for 384 MB beside the heap, and Python with TensorFlow needs more.
        # `spark.memory` says how much; a test compares.
        "spark.executor.memoryOverhead": "1856m",
        "spark.driver.memoryOverhead": "1280m",
    }


LOG4J = """\
rootLogger.level = info
rootLogger.appenderRef.file.ref = out
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d{ISO8601} %p %c{1}: %m%n%ex
"""


def environment(layout: SandboxLayout) -> dict[str, str]:
    """Return the variables by which Spark and Hadoop's clients find the sandbox.

    Two are empty, which counts as not set: they would go before ``HADOOP_CONF_DIR``, and those of a
    user may lead to another cluster.
    """
    return {
        "WEBHDFS_URL": "",
        "YARN_CONF_DIR": "",
        "HADOOP_CONF_DIR": str(layout.client),
        "SPARK_CONF_DIR": str(layout.client),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
    }


def render_site(properties: Mapping[str, str]) -> str:
    """Return a configuration file of Hadoop.

    Examples
    --------
    >>> print(render_site({"a.b": "<1"}), end="")
    <?xml version="1.0"?>
    <configuration>
      <property><name>a.b</name><value>&lt;1</value></property>
    </configuration>
    """
    lines = [
        f"  <property><name>{escape(name)}</name><value>{escape(value)}</value></property>"
        for name, value in properties.items()
    ]
    return "\n".join(['<?xml version="1.0"?>', "<configuration>", *lines, "</configuration>", ""])


def files(
    ports: Ports,
    layout: SandboxLayout,
    *,
    datanodes: int,
    memory_mb: int,
    pyspark: Path,
) -> dict[Path, str]:
    """Return every file of a sandbox, by its path.

    `datanodes`: DataNodes, at least 1.
    """
    sites = {
        "core-site.xml": core_site(ports, layout),
        "hdfs-site.xml": hdfs_site(ports, layout, datanodes),
        "yarn-site.xml": yarn_site(ports, layout, memory_mb),
    }
    defaults = spark_defaults(pyspark)
    written = {layout.client / name: render_site(site) for name, site in sites.items()}
    written[layout.daemons / "capacity-scheduler.xml"] = render_site(capacity_scheduler())
    written[layout.daemons / "log4j2.properties"] = LOG4J
    written[layout.client / "spark-defaults.conf"] = "".join(
        f"{name} {value}\n" for name, value in defaults.items()
    )
    exports = (
        f"export {name}={shlex.quote(value)}\n" for name, value in environment(layout).items()
    )
    written[layout.environment] = "".join(exports)
    return written


def default_memory_mb() -> int:
    """Return what YARN may hand out by default: half of this machine's memory, in megabytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2 >> 20
