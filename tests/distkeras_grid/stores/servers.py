"""Real servers on loopback that serve a folder: HTTP with and without ranges, WebHDFS."""

from __future__ import annotations

import contextlib
import functools
import http.server
import re
from collections.abc import Iterator
from pathlib import Path

from tests.distkeras_grid.webhdfs.loopback import Fault, drip, loopback
from tests.http_servers import serving


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Python's own server. It knows no ranges, so it sends whole files."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass


class Ranges(Quiet):
    """Sends ranges, as all larger servers do."""

    def do_GET(self) -> None:
        found = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        path = Path(self.translate_path(self.path))
        if not found or not path.is_file():
            super().do_GET()
            return
        content = path.read_bytes()
        stop = int(found[2]) + 1 if found[2] else len(content)
        part = self.part(content[int(found[1]) : stop])
        self.send_response(206)
        self.send_header("Content-Length", str(len(part)))
        self.send_header("Content-Range", f"bytes {found[1]}-{stop - 1}/{len(content)}")
        self.end_headers()
        self.wfile.write(part)

    def part(self, content: bytes) -> bytes:
        return content


class Damaged(Ranges):
    """Changes a byte of all that it sends."""

    def part(self, content: bytes) -> bytes:
        middle = len(content) // 2
        return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


class Slow(Ranges):
    """Sends a byte now and then, for some seconds."""

    def part(self, content: bytes) -> bytes:
        self.send_response(206)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        drip(self.wfile.write)
        self.close_connection = True
        return b""


@contextlib.contextmanager
def http_server(folder: Path, handler: type[Quiet] = Ranges) -> Iterator[str]:
    with serving(functools.partial(handler, directory=str(folder))) as address:
        yield address


@contextlib.contextmanager
def webhdfs_server(folder: Path, *, slow: bool = False) -> Iterator[str]:
    with loopback() as state:
        for path in folder.rglob("*"):
            if path.is_file():
                state.files[f"/data/{path.relative_to(folder).as_posix()}"] = path.read_bytes()
        if slow:
            state.faults["OPEN data"] = Fault("slow", times=-1)
        yield state.url.replace("http://", "webhdfs://") + "/data"
