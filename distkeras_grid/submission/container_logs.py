"""The logs of an application's containers: from the nodes while it runs, collected ones later.

Hadoop's own classes, which PySpark includes, read the collected logs: they know every format and
compression that a cluster may use.
"""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import msgspec

from distkeras_grid.errors import UNREADABLE, ClusterError
from distkeras_grid.logs import cause, line_of
from distkeras_grid.submission.applications import Application
from distkeras_grid.submission.jvm import HadoopClient
from distkeras_grid.submission.resource_manager import ResourceManager

# How much of a log is searched for the line that says why the program failed.
SEARCHED_BYTES = 1 << 18
# How much of its end is searched for its last line.
LINE_BYTES = 2000
# Nodes deliver the logs some seconds after an application has ended.
COLLECT_SECONDS = 20.0
POLL_SECONDS = 0.5
#: The files with programs' output. Other files there are those that started the container.
OUTPUTS = ("stdout", "stderr")

_HEAD = re.compile(rb"^LogLength:(\d+)\s*^LogContents:\n", re.MULTILINE)


@dataclass(frozen=True)
class LogFile:
    """A file of a container."""

    # container and node and name: Ids of container and node, and the file's name, such as
    # ``"stderr"``
    container: str
    node: str
    name: str
    size: int  # Size of the file in bytes

    @property
    def is_drivers(self) -> bool:
        """Whether the container is its application's master: in cluster mode, Spark's driver."""
        return is_drivers(self.container)


def is_drivers(container: str) -> bool:
    """Tell whether a container is that of its application's master."""
    return container.endswith("_000001")


class LogSource(Protocol):
    """Where the logs of an application are."""

    def files(self) -> list[LogFile]:
        """Return the files, in the order of their containers."""

    def read(self, file: LogFile, last: int | None = None) -> str:
        """Return the text of a file, or its last bytes."""


class RunningLogs:
    """The logs of an application that runs, on the pages of its nodes.

    `drivers`: whether only that of the application's master is asked.
    """

    def __init__(
        self,
        manager: ResourceManager,
        identifier: str,
        say: Callable[[str], object],
        *,
        drivers: bool = False,
    ) -> None:
        self._manager = manager
        self._say = say
        self._pages = {
            each.containerId: each.nodeHttpAddress
            for each in manager.containers(identifier)
            if not drivers or is_drivers(each.containerId)
        }

    def files(self) -> list[LogFile]:
        """Return the files, in the order of their containers.

        A node may be dead, and a container may have ended since YARN was asked. That hides no other
        log.
        """
        logs, problems = list[LogFile](), list[ClusterError]()
        for container in self._pages:
            try:
                logs += self._files_of(container)
            except ClusterError as error:
                problems.append(error)
        if problems and not logs:
            raise problems[0]
        for problem in problems:
            self._say(f"the logs of a container are left out: {problem}")
        return logs

    def read(self, file: LogFile, last: int | None = None) -> str:
        """Return the text of a file so far, or its last bytes."""
        query = {} if last is None else {"size": str(-last)}
        url = f"{self._page(file.container)}/ws/v1/node/containerlogs/{file.container}/{file.name}"
        return section(self._manager.fetch(url, **query), last)

    def _files_of(self, container: str) -> list[LogFile]:
        url = f"{self._page(container)}/ws/v1/node/containers/{container}/logs"
        try:
            answer = msgspec.json.decode(self._manager.fetch(url), type=_Listing)
        except UNREADABLE as error:
            raise ClusterError(f"{url} does not answer as YARN's nodes do ({error}).") from error
        info = answer.containerLogsInfo
        return [
            LogFile(container, info.nodeId, each.fileName, int(each.fileSize))
            for each in sorted(info.containerLogInfo, key=lambda each: each.fileName)
        ]

    def _page(self, container: str) -> str:
        page = self._pages[container]
        return page if "://" in page else f"http://{page}"


class _File(msgspec.Struct):
    fileName: str
    fileSize: str


class _Files(msgspec.Struct):
    containerLogInfo: list[_File]
    nodeId: str = ""


class _Listing(msgspec.Struct):
    containerLogsInfo: _Files


class CollectedLogs:
    """The logs of an application that has ended, as YARN has collected them."""

    def __init__(self, hadoop: HadoopClient, application: Application) -> None:
        self._jvm = hadoop.jvm
        self._application = application
        records = self._jvm.org.apache.hadoop.yarn
        configuration = records.conf.YarnConfiguration(hadoop.configuration)
        self._id = records.api.records.ApplicationId.fromString(application.id)
        factory = records.logaggregation.filecontroller.LogAggregationFileControllerFactory
        with _translated(application.id):
            self._controller = factory(configuration).getFileControllerForRead(
                self._id, application.user
            )

    def files(self) -> list[LogFile]:
        """Return the files, in the order of their containers."""
        with _translated(self._application.id):
            logs = [
                LogFile(
                    str(meta.getContainerId()),
                    str(meta.getNodeId()),
                    str(each.getFileName()),
                    int(each.getFileSize()),
                )
                for meta in self._controller.readAggregatedLogsMeta(self._request(None))
                for each in meta.getContainerLogMeta()
            ]
        return sorted(logs, key=lambda file: (file.container, file.name))

    def read(self, file: LogFile, last: int | None = None) -> str:
        """Return the text of a file, or its last bytes."""
        request = self._request(last)
        request.setContainerId(file.container)
        request.setNodeId(file.node)
        request.setLogTypes(self._jvm.java.util.HashSet([file.name]))
        with tempfile.TemporaryDirectory() as folder:
            request.setOutputLocalDir(folder)
            with _translated(self._application.id):
                self._controller.readAggregatedLogs(request, None)
            written = [path for path in Path(folder).rglob("*") if path.is_file()]
            return "".join(section(path.read_bytes(), last) for path in written)

    def _request(self, last: int | None) -> Any:
        request = self._jvm.org.apache.hadoop.yarn.logaggregation.ContainerLogsRequest()
        request.setAppId(self._id)
        request.setAppOwner(self._application.user)
        request.setAppFinished(True)
        request.setBytes((1 << 62) if last is None else -last)
        return request


@contextmanager
def _translated(identifier: str) -> Iterator[None]:
    """Turn an exception of the JVM into an error of this package."""
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

    try:
        yield
    except Py4JJavaError as error:
        name = str(error.java_exception.getClass().getSimpleName())
        message = str(error.java_exception.getMessage()).strip().split("\n", 1)[0]
        raise ClusterError(
            f"YARN has collected no logs of {identifier} that can be read here. Received: {name}: "
            f"{message.removesuffix('.')}. Ask again in some seconds, or as the user who ran it; "
            "the cluster must set yarn.log-aggregation-enable."
        ) from error


def section(content: bytes, last: int | None = None) -> str:
    r"""Return the text of a log without YARN's text around it; empty if there is no log.

    `last`: number of last bytes that were asked for.

    Examples
    --------
    >>> section(b"LogLength:3\nLogContents:\na\nb\nEnd of LogType:x\n")
    'a\nb'
    """
    head = _HEAD.search(content)
    if head is None:
        return ""
    length = int(head[1]) if last is None else min(int(head[1]), last)
    return content[head.end() : head.end() + length].decode(errors="replace")


def wait_for_logs(hadoop: HadoopClient, application: Application) -> CollectedLogs | None:
    """Return the logs of an application that has just ended, once they hold the driver's.

    The result is None if YARN collects no logs, or has not collected these within 20 s.
    """
    configuration = hadoop.jvm.org.apache.hadoop.yarn.conf.YarnConfiguration(hadoop.configuration)
    if not configuration.getBoolean("yarn.log-aggregation-enable", False):
        return None
    deadline = time.monotonic() + COLLECT_SECONDS
    while True:
        try:
            logs = CollectedLogs(hadoop, application)
            if outputs_of_driver(logs):
                return logs
        except ClusterError:
            # There is nothing before the first node has delivered.
            pass
        if time.monotonic() > deadline:
            return None
        time.sleep(POLL_SECONDS)


def outputs_of_driver(source: LogSource) -> list[LogFile]:
    """Return what the last attempt's master wrote; the output of a Python program comes first."""
    files = [each for each in source.files() if each.is_drivers and each.name in OUTPUTS]
    last = max((each.container for each in files), default="")
    return sorted(
        (each for each in files if each.container == last), key=lambda each: each.name != "stdout"
    )


def last_line(source: LogSource) -> str:
    """Return the last line that the program of the driver has written; empty if there is none."""
    written = [each for each in outputs_of_driver(source) if each.name == "stdout"]
    text = source.read(written[0], LINE_BYTES) if written else ""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return line_of(lines[-1]) if lines else ""


def cause_in(source: LogSource) -> str | None:
    """Return the line that says why an application failed; None if no log says it.

    The output of the driver's program counts most, then that of Spark.
    """
    for file in outputs_of_driver(source):
        if why := cause(source.read(file, SEARCHED_BYTES)):
            return why
    return None
