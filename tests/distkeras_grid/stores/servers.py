"""Real servers on loopback that serve a folder: HTTP with and without ranges, FTP, WebHDFS."""

from __future__ import annotations

import contextlib
import functools
import http.server
import re
import socket
import socketserver
import threading
import warnings
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
def slow_ftp_server(_: Path) -> Iterator[str]:
    """As `Slow`, by FTP: it answers as little as a client asks for a file."""
    replies = {"USER": "331 ", "PASS": "230 ", "TYPE": "200 ", "RETR": "150 "}

    class Session(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            self.wfile.write(b"220 \r\n")
            with socket.create_server(("127.0.0.1", 0)) as listener:
                port = listener.getsockname()[1]
                for line in self.rfile:
                    verb = line.decode().split()[0]
                    passive = f"229 (|||{port}|)", f"227 (127,0,0,1,{port >> 8},{port & 255})"
                    reply = dict(zip(("EPSV", "PASV"), passive, strict=True)).get(verb)
                    self.wfile.write(f"{reply or replies.get(verb, '500 ')}\r\n".encode())
                    if verb == "RETR":
                        connection, _ = listener.accept()
                        with connection:
                            drip(connection.sendall)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Session) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield f"ftp://ada:love@127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join(10)


@contextlib.contextmanager
def http_server(folder: Path, handler: type[Quiet] = Ranges) -> Iterator[str]:
    with serving(functools.partial(handler, directory=str(folder))) as address:
        yield address


@contextlib.contextmanager
def ftp_server(folder: Path) -> Iterator[str]:
    with warnings.catch_warnings():
        # Python 3.11 has the module that it is built on, and says that 3.12 has not.
        warnings.filterwarnings("ignore", "The asyn", DeprecationWarning)
        from pyftpdlib.authorizers import DummyAuthorizer
        from pyftpdlib.handlers import FTPHandler
        from pyftpdlib.ioloop import IOLoop
        from pyftpdlib.servers import ThreadedFTPServer

    authorizer = DummyAuthorizer()
    authorizer.add_user("ada", "love@lace", str(folder))

    class Handler(FTPHandler):
        pass

    class Server(ThreadedFTPServer):
        # Otherwise all servers of a process close together.
        _lock, _exit = threading.Lock(), threading.Event()

    Handler.authorizer = authorizer
    server = Server(("127.0.0.1", 0), Handler, ioloop=IOLoop())
    stopped = threading.Event()

    def serve() -> None:
        # Its own thread closes the loop: a descriptor closed under a waiting epoll is an error.
        while not stopped.is_set():
            server.serve_forever(timeout=0.05, blocking=False, handle_exit=False)
        server.close_all()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"ftp://ada:love%40lace@127.0.0.1:{server.address[1]}"
    finally:
        stopped.set()
        thread.join(10)


@contextlib.contextmanager
def webhdfs_server(folder: Path) -> Iterator[str]:
    with loopback() as state:
        for path in folder.rglob("*"):
            if path.is_file():
                state.files[f"/data/{path.relative_to(folder).as_posix()}"] = path.read_bytes()
        yield state.url.replace("http://", "webhdfs://") + "/data"


@contextlib.contextmanager
def slow_webhdfs_server(folder: Path) -> Iterator[str]:
    with loopback() as state:
        state.files["/data/plain.bin"] = (folder / "plain.bin").read_bytes()
        state.faults["OPEN data"] = Fault("slow", times=-1)
        yield state.url.replace("http://", "webhdfs://") + "/data"
