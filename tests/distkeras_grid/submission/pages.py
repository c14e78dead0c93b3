"""YARN's pages on loopback: answers as Hadoop 3.5 gave them, on real HTTP."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec

from distkeras_grid.submission.applications import Application
from distkeras_grid.submission.container_logs import LogFile
from tests.http_servers import QuietHandler, serving

FAILED = "application_17_0002"
RUNNING = "application_17_0003"
MASTER = "container_17_0003_01_000001"
NOT_FOUND = (404, {"RemoteException": {"exception": "NotFoundException", "message": "not found"}})


def app(identifier: str, **more: Any) -> dict[str, Any]:
    """An application as YARN tells it."""
    return {
        "id": identifier,
        "user": "me",
        "name": "a job",
        "queue": "root.nightly",
        "state": "RUNNING",
        "finalStatus": "UNDEFINED",
        "diagnostics": "",
        "trackingUrl": "http://host/",
        "applicationType": "SPARK",
        "startedTime": int(identifier[-4:]) * 1000,
        "finishedTime": 0,
        "runningContainers": 3,
        "allocatedMB": 2048,
        "applicationTags": "distkeras-grid-0,mine",
        **more,
    }


def application(identifier: str = RUNNING, **more: Any) -> Application:
    """The same as it is read."""
    return msgspec.convert(app(identifier, **more), Application)


class Logs:
    """Logs by container and name."""

    def __init__(self, logs: dict[tuple[str, str], str]) -> None:
        self.logs = logs

    def files(self) -> list[LogFile]:
        return [LogFile(c, "n:1", name, len(text)) for (c, name), text in self.logs.items()]

    def read(self, file: LogFile, last: int | None = None) -> str:
        text = self.logs[file.container, file.name]
        return text if last is None else text[-last:]


def pages(node: str) -> dict[str, Any]:
    """What each path answers; `node` is the address of a node's pages."""
    ended = {"runningContainers": -1, "allocatedMB": -1}
    apps = [
        app("application_17_0001", applicationTags="", state="FAILED"),
        app(FAILED, state="FINISHED", finalStatus="FAILED", diagnostics="why\n", **ended),
        app(RUNNING),
    ]
    attempt = RUNNING.replace("application", "appattempt") + "_000001"
    files = [{"fileName": name, "fileSize": size} for name, size in (("stdout", "6"), ("x", "0"))]
    content = (
        f"Container: {MASTER} on n:1\nLogType:stdout\nLogLength:6\nLogContents:\na\nb\nc\n"
        "End of LogType:stdout.This log file belongs to a running container\n"
    )
    cluster = "/ws/v1/cluster/apps"
    return {
        cluster: {"apps": {"app": apps}},
        **{f"{cluster}/{each['id']}": {"app": each} for each in apps},
        f"{cluster}/{RUNNING}/appattempts": {
            "appAttempts": {"appAttempt": [{"appAttemptId": attempt}]}
        },
        f"{cluster}/{RUNNING}/appattempts/{attempt}/containers": {
            "container": [{"containerId": MASTER, "nodeHttpAddress": node}]
        },
        f"/ws/v1/node/containers/{MASTER}/logs": {
            "containerLogsInfo": {"containerLogInfo": files, "nodeId": "n:1"}
        },
        f"/ws/v1/node/containerlogs/{MASTER}/stdout": content,
    }


@contextlib.contextmanager
def yarn_pages(answers: dict[str, Any] | None = None) -> Iterator[str]:
    """Serve `pages`, or other answers by their path; yield the address."""

    class Handler(QuietHandler):
        def do_GET(self) -> None:
            asked = urlsplit(self.path)
            known = pages(self.headers["Host"]) if answers is None else answers
            status, content = 200, known.get(asked.path, NOT_FOUND)
            if isinstance(content, tuple):
                status, content = content
            size = int(parse_qs(asked.query).get("size", ["0"])[0])
            if isinstance(content, str) and size:
                head, _, rest = content.partition("LogContents:\n")
                log, _, tail = rest.rpartition("End of LogType")
                content = f"{head}LogContents:\n{log[size:]}End of LogType{tail}"
            body = content.encode() if isinstance(content, str) else json.dumps(content).encode()
            self.reply(status, body)

        def do_PUT(self) -> None:
            told = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            path = urlsplit(self.path).path.removesuffix("/state")
            status, content = 202, {"state": "RUNNING"}
            if answers is None or path not in answers:
                status, content = 403, {}
            else:
                answers[path]["app"] |= {"state": told["state"], "finalStatus": told["state"]}
            self.reply(status, json.dumps(content).encode())

    with serving(Handler) as address:
        yield address
