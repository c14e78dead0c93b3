"""Applications of YARN as values, and their description in one line."""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass

from distkeras_grid.errors import ConfigurationError

ENDED = ("FINISHED", "FAILED", "KILLED")


@dataclass(frozen=True)
class Application:
    """The state of an application."""

    id: str  # id and name and user and queue: Id, name, user and queue of the application in YARN
    name: str
    user: str
    queue: str
    state: str  # ``"ACCEPTED"``, ``"RUNNING"``, ``"FINISHED"``, ``"FAILED"``, ``"KILLED"``
    final: str  # ``"SUCCEEDED"``, ``"FAILED"``, ``"KILLED"``, or ``"UNDEFINED"`` until it has ended
    # containers and memory_mb: Number of containers and memory [MB] that it uses now
    containers: int
    memory_mb: int
    diagnostics: str  # What YARN or the application says
    tracking_url: str  # Address of its page
    started: float  # started and finished: Times of start and end, Unix seconds; 0 if not yet
    finished: float
    tags: tuple[str, ...] = ()  # What `submit` has written on it
    log_page: str = ""  # Address of the log of its master's container

    @property
    def ended(self) -> bool:
        """Whether it has ended, with or without success."""
        return self.state in ENDED

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
    return f"distkeras-grid-{uuid.uuid4().hex}"


def check_id(identifier: str) -> None:
    """Refuse a text that is not an application's id."""
    if not re.fullmatch(r"application_\d+_\d+", identifier):
        raise ConfigurationError(
            "An application's id looks like application_1700000000000_0001. Received: "
            f"{identifier!r}."
        )
