"""Applications of YARN as its REST interface describes them."""

from __future__ import annotations

import re
import uuid

import msgspec

from distkeras_grid.errors import ConfigurationError

#: What the tags of applications that `submit` has started begin with.
TAG = "distkeras-grid-"


class Application(msgspec.Struct, frozen=True, kw_only=True):
    """The state of an application; the fields are renamed from YARN's answer."""

    id: str
    name: str
    user: str
    queue: str
    state: str  # ``"ACCEPTED"``, ``"RUNNING"``, ``"FINISHED"``, ``"FAILED"``, ``"KILLED"``
    # ``"SUCCEEDED"``, ``"FAILED"``, ``"KILLED"``, or ``"UNDEFINED"`` until it has ended
    final: str = msgspec.field(name="finalStatus")
    started_ms: int = msgspec.field(name="startedTime")  # Unix milliseconds; 0 if not yet
    finished_ms: int = msgspec.field(name="finishedTime")
    # Containers and memory [MB] that it uses now; -1 once it has ended
    containers: int = msgspec.field(default=0, name="runningContainers")
    memory_mb: int = msgspec.field(default=0, name="allocatedMB")
    diagnostics: str = ""  # What YARN or the application says
    tracking_url: str = msgspec.field(default="", name="trackingUrl")
    tags: str = msgspec.field(default="", name="applicationTags")  # With commas between
    log_page: str = msgspec.field(default="", name="amContainerLogs")

    @property
    def ended(self) -> bool:
        """Whether it has ended, with or without success."""
        return self.state in ("FINISHED", "FAILED", "KILLED")

    @property
    def waits(self) -> bool:
        """Whether it has no executors: no container, or only that of its driver or its master."""
        return not self.ended and (self.state != "RUNNING" or self.containers <= 1)

    @property
    def exit_status(self) -> int | None:
        """The exit code of its program, None if Spark does not report it."""
        match = re.search(r"User application exited with (?:status )?(\d+)", self.diagnostics)
        return int(match.group(1)) if match else None


def state_line(application: Application, seconds: float) -> str:
    """Return one line with the state of an application, after a number of seconds."""
    line = f"{application.id}  {application.state}  {seconds:.0f} s"
    if application.ended:
        return f"{line}  {application.final}"
    if application.state == "RUNNING":
        executors = ", no executors yet" if application.waits else ""
        return f"{line}  {application.containers} containers, {application.memory_mb} MB{executors}"
    return f"{line}  waiting for a container"


def new_tag() -> str:
    """Return a tag for one application, by which YARN finds it before anybody knows its id."""
    return f"{TAG}{uuid.uuid4().hex}"


def check_id(identifier: str) -> None:
    """Refuse a text that is not an application's id."""
    if not re.fullmatch(r"application_\d+_\d+", identifier):
        raise ConfigurationError(
            "An application's id looks like application_1700000000000_0001. Received: "
            f"{identifier!r}."
        )
