"""The server process; `distkeras_grid.parameter_server.process` starts it.

It reads the settings with the key from standard input, then the center, and the parts of the
checkpoint from which the run goes on, if any. It writes its address to standard output. When the
input closes, the driver has gone, and this process ends, too.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from io import BufferedReader, BufferedWriter

from distkeras_grid.parameter_server.service import Service
from distkeras_grid.parameter_server.settings import LENGTH, ServerSettings
from distkeras_grid.parameter_server.spill import scratch
from distkeras_grid.parameter_server.transports import cannot_listen
from distkeras_grid.weights import empty_vector


def main() -> int:
    """Serve until standard input closes; return the exit code."""
    with (
        open(sys.stdin.fileno(), "rb", closefd=False) as source,
        open(sys.stdout.fileno(), "wb", closefd=False) as sink,
    ):
        return _serve(source, sink)


def _serve(source: BufferedReader, sink: BufferedWriter) -> int:
    launch = json.loads(source.read(LENGTH.unpack(source.read(LENGTH.size))[0]))
    key, lengths = bytes.fromhex(launch.pop("key")), launch.pop("saved")
    settings = ServerSettings.from_json(launch)
    center = empty_vector(settings.spec.size)
    saved = [scratch(length) for length in lengths]
    for part in (center.data.cast("B"), *(each.data for each in saved)):
        if source.readinto(part) != len(part):
            sys.stderr.write("the driver left before it had sent all of the center\n")
            return 1
    try:
        service = Service(settings, center, key, saved=saved)
    except OSError as error:
        place = settings.place
        sys.stderr.write(
            f"{cannot_listen(place.bind_host, place.port, place.port_retries, error)}\n"
        )
        return 1

    def end(failed: threading.ExceptHookArgs) -> None:
        """End the process if the core has failed; the driver reads what is written here."""
        threading.__excepthook__(failed)
        if service.broken:
            os._exit(1)

    threading.excepthook = end
    try:
        body = json.dumps(service.address.to_json()).encode("ascii")
        sink.write(LENGTH.pack(len(body)) + body)
        sink.flush()
        source.read(1)
    finally:
        service.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
