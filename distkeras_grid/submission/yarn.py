"""Applications of YARN: their state, their logs, and how they are stopped."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from distkeras_grid.errors import ApplicationNotFoundError, ClusterError, NotAuthenticatedError
from distkeras_grid.file_systems import STRANGER, meaning
from distkeras_grid.submission.applications import Application, check_id, is_tag, state_line
from distkeras_grid.submission.container_logs import CollectedLogs, wait_for_logs
from distkeras_grid.submission.jvm import HadoopClient
from distkeras_grid.submission.resource_manager import CANCEL_SECONDS, not_ended

# By default the client looks for a ResourceManager for a quarter of an hour, with ten attempts to
# connect each time. With these values it gives up after about 20 s.
LIMITS = {
    "yarn.resourcemanager.connect.max-wait.ms": 10000,
    "yarn.resourcemanager.connect.retry-interval.ms": 1000,
    "ipc.client.connect.max.retries": 0,
    "ipc.client.connect.max.retries.on.timeouts": 0,
    # By default it asks for ever whether an application that it kills has ended.
    "yarn.client.application-client-protocol.poll-timeout-ms": int(1000 * CANCEL_SECONDS),
}
POLL_SECONDS = 1.0
SAY_SECONDS = 15.0
# Between two lines on an application that waits for its containers.
SAY_WAITING_SECONDS = 4.0


class Yarn:
    """YARN's own client; see `yarn_client`."""

    def __init__(self, hadoop: HadoopClient) -> None:
        self._hadoop = hadoop
        self._jvm = hadoop.jvm
        self._gateway = hadoop.gateway
        configuration = self._jvm.org.apache.hadoop.yarn.conf.YarnConfiguration(
            hadoop.configuration
        )
        for name, value in LIMITS.items():
            configuration.setInt(name, value)
        self._configuration = configuration
        self._client = self._jvm.org.apache.hadoop.yarn.client.api.YarnClient.createYarnClient()

    def start(self) -> None:
        """Connect.

        Raises
        ------
        ClusterError
            If there is no ResourceManager.
        """
        self._client.init(self._configuration)
        self._client.start()
        with _translated("reach YARN"):
            nodes = int(self._client.getYarnClusterMetrics().getNumNodeManagers())
        if not nodes:
            raise ClusterError("YARN has no NodeManager, so nothing can run. Start one.")

    def application(self, identifier: str) -> Application:
        """Return the state of an application.

        Raises
        ------
        ConfigurationError
            If the text is not an application's id.
        ApplicationNotFoundError
            If YARN does not know it.
        ClusterError
            If YARN does not answer.
        """
        with _translated(f"ask for {identifier}"):
            return _application(self._client.getApplicationReport(self._id(identifier)))

    def tagged(self, tag: str) -> str | None:
        """Return the id of the application with a tag; None if there is none."""
        requests = self._jvm.org.apache.hadoop.yarn.api.protocolrecords
        request = requests.GetApplicationsRequest.newInstance()
        request.setApplicationTags(self._gateway.jvm.java.util.HashSet([tag]))
        with _translated("list the applications"):
            found = [str(each.getApplicationId()) for each in self._client.getApplications(request)]
        return found[0] if found else None

    def going(self, name: str) -> str | None:
        """Return the id of an application, named by id or tag; None if unknown, or it has ended."""
        identifier = self.tagged(name) if is_tag(name) else name
        if identifier is None:
            return None
        try:
            return None if self.application(identifier).ended else identifier
        except ApplicationNotFoundError:
            return None

    def cancel(self, identifier: str) -> Application:
        """Stop an application, and wait until it has ended; return how it ended.

        Raises
        ------
        ClusterError
            If YARN refuses, or it does not end in time.
        """
        deadline = time.monotonic() + CANCEL_SECONDS
        application = self.application(identifier)
        while not application.ended:
            if time.monotonic() > deadline:
                raise not_ended(application)
            with _translated(f"stop {identifier}"):
                self._client.killApplication(self._id(identifier))
            application = self.application(identifier)
        return application

    def logs(self, application: Application) -> CollectedLogs | None:
        """Return the logs of an application that has just ended; see `wait_for_logs`."""
        return wait_for_logs(self._hadoop, application)

    def log_page(self, identifier: str) -> str | None:
        """Return the address of the log of the driver's container; None if it is not known."""
        attempt = self._last_attempt(identifier)
        if attempt is None:
            return None
        states = self._gateway.new_array(self._jvm.org.apache.hadoop.yarn.api.records.NodeState, 0)
        with _translated("list the nodes"):
            nodes = list(self._client.getNodeReports(states))
        pages = {str(node.getNodeId().getHost()): str(node.getHttpAddress()) for node in nodes}
        # If there is a single node, it has the page, whatever the application calls its host.
        only = next(iter(pages.values())) if len(pages) == 1 else None
        page = pages.get(str(attempt.getHost()), only)
        user = self.application(identifier).user
        container = attempt.getAMContainerId()
        return f"http://{page}/node/containerlogs/{container}/{user}" if page else None

    def _last_attempt(self, identifier: str) -> Any | None:
        """Return YARN's report of the last attempt that had a container."""
        with _translated(f"ask for the attempts of {identifier}"):
            attempts = list(self._client.getApplicationAttempts(self._id(identifier)))
        had = [each for each in attempts if each.getAMContainerId() is not None]
        return had[-1] if had else None

    def _id(self, identifier: str) -> Any:
        check_id(identifier)
        return self._jvm.org.apache.hadoop.yarn.api.records.ApplicationId.fromString(identifier)


@contextmanager
def yarn_client(hadoop: HadoopClient) -> Iterator[Yarn]:
    """Connect to the ResourceManager that the configuration names, until the JVM ends.

    Raises
    ------
    ClusterError
        If it does not answer.
    """
    yarn = Yarn(hadoop)
    yarn.start()
    yield yarn


def wait(
    yarn: Yarn,
    identifier: str,
    say: Callable[[str], object],
    driver: Callable[[], str] = str,
    clock: Callable[[], float] = time.monotonic,
) -> Application:
    """Wait until an application ends; report its state when it changes, and every few seconds.

    While it runs, a line every 15 s is enough, with what `driver` returns: its last line.

    There is no deadline, because a job may take any time. A ResourceManager that does not answer
    is an error after 20 s.
    """
    said, state = -SAY_SECONDS, ""
    began = clock()
    while True:
        application = yarn.application(identifier)
        passed = clock() - began
        pause = SAY_WAITING_SECONDS if application.waits else SAY_SECONDS
        if application.state != state or passed - said >= pause:
            said, state = passed, application.state
            told = driver() if state == "RUNNING" else ""
            say(state_line(application, passed) + (f": {told}" if told else ""))
        if application.ended:
            return application
        time.sleep(POLL_SECONDS)


def _application(report: Any) -> Application:
    usage = report.getApplicationResourceUsageReport()
    return Application(
        id=str(report.getApplicationId()),
        name=str(report.getName()),
        user=str(report.getUser()),
        queue=str(report.getQueue()),
        state=str(report.getYarnApplicationState()),
        final=str(report.getFinalApplicationStatus()),
        # YARN reports -1 if it does not know.
        containers=max(0, int(usage.getNumUsedContainers())) if usage else 0,
        memory_mb=max(0, int(usage.getUsedResources().getMemorySize())) if usage else 0,
        diagnostics=str(report.getDiagnostics() or "").strip(),
        tracking_url=str(report.getTrackingUrl()),
        started=int(report.getStartTime()) / 1000,
        finished=int(report.getFinishTime()) / 1000,
    )


@contextmanager
def _translated(action: str) -> Iterator[None]:
    """Turn an exception of the JVM into an error of this package."""
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

    try:
        yield
    except Py4JJavaError as error:
        name = str(error.java_exception.getClass().getSimpleName())
        message = str(error.java_exception.getMessage()).strip().split("\n", 1)[0]
        if name == "ApplicationNotFoundException":
            raise ApplicationNotFoundError(
                f"Cannot {action}: this YARN does not know it, or has forgotten it. Check the id "
                "and HADOOP_CONF_DIR."
            ) from error
        told = f"{name}: {message.removesuffix('.')}"
        if advice := meaning(STRANGER, told):
            raise NotAuthenticatedError(f"Cannot {action}: {told}. {advice}") from error
        raise ClusterError(
            f"Cannot {action}: {told}. Check HADOOP_CONF_DIR (yarn-site.xml), and that the "
            "ResourceManager runs."
        ) from error
