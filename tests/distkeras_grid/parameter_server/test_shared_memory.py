"""Vectors in shared memory: whose they are, what is refused, and that nothing stays behind."""

from __future__ import annotations

import errno
import fcntl
import gc
import mmap
import os
import signal
import subprocess
import sys
import tempfile
import threading
from contextlib import contextmanager, suppress

import numpy as np
import psutil
import pytest

from distkeras_grid.errors import (
    FencedError,
    RefusedError,
    RemoteProtocolError,
)
from distkeras_grid.parameter_server import client as client_module
from distkeras_grid.parameter_server import service, shared_memory, streams
from distkeras_grid.parameter_server.auth import new_key, seat_key
from distkeras_grid.parameter_server.channel import Channel
from distkeras_grid.parameter_server.messages import ShareMemory, ShareMemoryReply
from distkeras_grid.parameter_server.process import ServerProcess
from distkeras_grid.parameter_server.shared_memory import SharedBuffer, borrow
from distkeras_grid.records import WorkerRecord
from distkeras_grid.weights import StateSection, Variable
from tests.leaks import open_files

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memfd_create is Linux")

SIZE = 5000
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | 0x10


def memories():
    """Return how many descriptors of such memory this process has."""
    links = (f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd"))
    return sum("distkeras-grid" in os.readlink(link) for link in links if os.path.lexists(link))


def transports_of(bench):
    events = bench.driver().poll(5).events
    return [e.transport for e in events if isinstance(e, WorkerRecord) and e.transport]


# -- the memory ---------------------------------------------------------------------------------


def test_what_the_owner_writes_is_read_there_and_only_the_owner_can_write_or_shorten_it():
    own = SharedBuffer(SIZE)
    theirs = borrow(own.file, SIZE)
    own.vector[:] = np.arange(SIZE)
    np.testing.assert_array_equal(theirs, np.arange(SIZE))
    assert own.vector.ctypes.data % 64 == theirs.ctypes.data % 64 == 0
    with pytest.raises(ValueError, match="read-only"):
        theirs[0] = 1
    for change in (
        lambda: mmap.mmap(own.file, 4 * SIZE),
        lambda: os.pwrite(own.file, b"x", 0),
        lambda: os.ftruncate(own.file, 0),
    ):
        with pytest.raises(PermissionError):
            change()
    own.close()


@contextmanager
def ordinary_file():
    with tempfile.TemporaryFile() as file:
        file.truncate(4 * SIZE)
        yield file.fileno()


@contextmanager
def a_pipe():
    ends = os.pipe()
    yield ends[0]
    for end in ends:
        os.close(end)


def memory(length=4 * SIZE, seals=SEALS, allocated=True):
    @contextmanager
    def made():
        file = os.memfd_create("other", os.MFD_ALLOW_SEALING)
        os.ftruncate(file, length)
        if allocated:
            os.posix_fallocate(file, 0, length)
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, seals)
        yield file
        os.close(file)

    return made


#: Files that no honest peer lends, by what is wrong with them.
LIES = {
    "an ordinary file": ordinary_file,
    "a pipe": a_pipe,
    "too short": memory(4 * SIZE - 4),
    "too long": memory(4 * SIZE + 4),
    "may shrink": memory(seals=SEALS & ~fcntl.F_SEAL_SHRINK),
    "others may write": memory(seals=SEALS & ~0x10),
    "with holes": memory(allocated=False),
}


@pytest.mark.parametrize("lie", LIES)
def test_other_files_are_no_lent_memory(lie):
    with memory()() as honest:
        assert borrow(honest, SIZE).size == SIZE
    with LIES[lie]() as file, pytest.raises(RemoteProtocolError):
        borrow(file, SIZE)


# -- the transport -------------------------------------------------------------------------------


def test_a_worker_on_the_servers_host_takes_it_and_no_byte_of_a_vector_goes_through_the_socket(
    serve, tools, monkeypatch
):
    bench = serve(trainable_size=SIZE)
    client = bench.started()
    assert client.transport == "shared memory"
    stream, sent = client._session.channel.stream, []
    send = stream.send

    def count(parts, deadline):
        sent.append(sum(map(len, parts)))
        send(parts, deadline)

    monkeypatch.setattr(stream, "send", count)
    for sequence in range(3):
        client.send_buffer[:] = np.arange(SIZE)
        reply = np.empty(SIZE, np.float32)
        client.exchange(tools.commit(sequence), client.send_buffer, reply)
        np.testing.assert_array_equal(reply, (sequence + 1) * np.arange(SIZE))
    assert 0 < sum(sent) < 3000
    np.testing.assert_array_equal(bench.driver().center(), reply)
    assert transports_of(bench) == ["shared memory"]


@pytest.mark.parametrize("compression", ["bfloat16", "dgc"])
def test_compressed_vectors_go_through_the_socket(serve, tools, compression):
    bench = serve(trainable_size=SIZE, compression=compression)
    client = bench.started()
    tools.exchange(client, tools.commit(0))
    assert transports_of(bench) == ["unix socket"]


def no_memory(*arguments):
    raise OSError(errno.ENOSPC, "no room")


def cannot_map(file, size):
    raise OSError(errno.ENOMEM, "no room")


@pytest.mark.parametrize(
    ("module", "name", "without"),
    [
        pytest.param(client_module, "SharedBuffer", no_memory, id="the worker has no memory"),
        pytest.param(service, "SharedBuffer", no_memory, id="the server has no memory"),
        pytest.param(service, "borrow", cannot_map, id="the server cannot map the worker's"),
        pytest.param(client_module, "borrow", cannot_map, id="the worker cannot map the server's"),
        pytest.param(service, "LENT_LIMIT", 4 * SIZE - 1, id="more than the server maps"),
        pytest.param(client_module, "LENT_LIMIT", 4 * SIZE - 1, id="more than a worker lends"),
    ],
)
def test_without_memory_the_socket_carries_them(serve, tools, monkeypatch, module, name, without):
    monkeypatch.setattr(module, name, without)
    bench = serve(trainable_size=SIZE)
    client = bench.started()
    for sequence in range(2):
        assert tools.exchange(client, tools.commit(sequence))[1] == sequence + 1
    assert client.send_buffer is None
    assert transports_of(bench) == ["unix socket"]


def test_a_full_disk_leaves_no_descriptor_open(monkeypatch):
    monkeypatch.setattr(shared_memory.os, "posix_fallocate", no_memory)
    before = open_files()
    with pytest.raises(OSError, match="no room"):
        SharedBuffer(SIZE)
    assert open_files() == before


def test_what_a_lost_worker_has_lent_makes_room_again(serve, tools, monkeypatch):
    monkeypatch.setattr(service, "LENT_LIMIT", 4 * SIZE)
    bench = serve(trainable_size=SIZE, seats=2)
    first = bench.worker(0)
    assert bench.worker(1).transport == "unix socket"
    first.close()
    tools.wait_until(lambda: bench.service._borrowed == 0)
    assert bench.worker(1, attempt=1).transport == "shared memory"


def test_workers_that_lend_at_once_keep_the_limit(serve, tools, monkeypatch):
    """Each is let in by what is mapped then, and mapping takes a while."""
    monkeypatch.setattr(service, "LENT_LIMIT", 4 * SIZE)
    mapping = threading.Barrier(2)

    def slow(file, size):
        with suppress(threading.BrokenBarrierError):
            mapping.wait(1)
        return borrow(file, size)

    monkeypatch.setattr(service, "borrow", slow)
    bench = serve(trainable_size=SIZE, seats=2)
    first, second = tools.in_threads(lambda: bench.worker(0), lambda: bench.worker(1))
    assert {first.transport, second.transport} == {"shared memory", "unix socket"}
    assert bench.service._borrowed == 4 * SIZE


def not_permitted(*arguments):
    raise OSError(errno.EPERM, "not permitted")


@pytest.mark.parametrize("sender", [ShareMemory, ShareMemoryReply])
def test_where_sockets_pass_no_files_they_carry_the_vectors(serve, tools, monkeypatch, sender):
    """Some sandboxes forbid it."""
    send = Channel.send

    def send_without(self, message, *section, **file):
        with monkeypatch.context() as patch:
            if isinstance(message, sender):
                patch.setattr(streams.SocketStream, "send_file", not_permitted)
            send(self, message, *section, **file)

    monkeypatch.setattr(Channel, "send", send_without)
    bench = serve(trainable_size=SIZE)
    client = bench.started()
    assert tools.exchange(client, tools.commit(0))[1] == 1
    assert client.send_buffer is None
    assert transports_of(bench) == ["unix socket"]
    assert bench.service._borrowed == 0


@pytest.mark.full
def test_a_client_that_cannot_connect_leaves_no_memory(serve, monkeypatch):
    bench = serve(trainable_size=SIZE)

    def fenced(*_):
        raise FencedError("another one has it")

    monkeypatch.setattr(service.Service, "_lend", fenced)
    gc.collect()
    before = memories()
    with pytest.raises(FencedError):
        bench.worker()
    gc.collect()
    assert memories() == before


# -- what is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limit", "lent", "mapped"),
    [
        pytest.param(0, ordinary_file, 0, id="an ordinary file"),
        pytest.param(shared_memory.LENT_LIMIT, memory(), 4 * SIZE, id="a second memory"),
    ],
)
def test_a_server_refuses_other_files_and_goes_on(serve, tools, monkeypatch, limit, lent, mapped):
    bench = serve(trainable_size=SIZE)
    monkeypatch.setattr(client_module, "LENT_LIMIT", limit)
    client = bench.worker()
    with lent() as file, pytest.raises(RefusedError):
        client._session.ask(ShareMemory(), ShareMemoryReply, file=file)
    client.ready(100)
    assert tools.exchange(client, tools.commit(0))[1] == 1
    assert bench.service._borrowed == mapped


def test_a_message_without_its_file_is_refused(serve, monkeypatch):
    monkeypatch.setattr(client_module, "LENT_LIMIT", 0)
    client = serve(trainable_size=SIZE).worker()
    stream = client._session.channel.stream
    monkeypatch.setattr(stream, "send_file", lambda *_: stream._socket.send(b"0"))
    with pytest.raises(RefusedError):
        client._session.ask(ShareMemory(), ShareMemoryReply, file=0)


def test_a_worker_does_not_read_what_is_no_lent_memory(serve, tools, monkeypatch):
    send = Channel.send

    def lie(self, message, *section, **file):
        if isinstance(message, ShareMemoryReply):
            with ordinary_file() as other:
                send(self, message, file=other)
        else:
            send(self, message, *section, **file)

    monkeypatch.setattr(Channel, "send", lie)
    bench = serve(trainable_size=SIZE)
    client = bench.started()
    assert tools.exchange(client, tools.commit(0))[1] == 1
    assert transports_of(bench) == ["unix socket"]


def test_what_a_worker_changes_after_it_was_checked_is_not_folded(serve, tools, monkeypatch):
    bench = serve(trainable_size=SIZE)
    client = bench.started()
    checked = service.size_of

    def check(vector):
        size = checked(vector)
        client.send_buffer[:] = np.nan
        return size

    monkeypatch.setattr(service, "size_of", check)
    client.send_buffer[:] = 3
    reply = np.empty(SIZE, np.float32)
    client.exchange(tools.commit(0), client.send_buffer, reply)
    np.testing.assert_array_equal(reply, 3)
    np.testing.assert_array_equal(bench.driver().center(), 3)


# -- fencing ------------------------------------------------------------------------------------


def test_a_late_reply_of_an_old_connection_reaches_nobody(serve, tools, monkeypatch):
    """The server answers on the old connection while the worker goes on with the new one's."""
    channels, lend = [], service.Service._lend

    def note(self, channel):
        lend(self, channel)
        channels.append(channel)

    monkeypatch.setattr(service.Service, "_lend", note)
    bench = serve(trainable_size=SIZE)
    client = bench.started()
    (old,) = (channel.connection.vector for channel in channels)
    client._session.channel.close()
    assert tools.exchange(client, tools.commit(0))[1] == 1
    old[:] = 77
    answer, value = tools.exchange(client, tools.commit(1))
    assert (answer.version, value) == (2, 2)
    old[:] = 77
    np.testing.assert_array_equal(client._session.channel.connection._lent[1], 2)
    np.testing.assert_array_equal(bench.driver().center(), 2)
    assert transports_of(bench) == ["shared memory"] * 2


def test_steps_and_states_go_the_same_way(serve, tools):
    state = StateSection((Variable("velocity", (SIZE,)),))
    bench = serve(rule="mean_gradient", trainable_size=SIZE, state=state.variables)
    client = bench.started()
    assert client.transport == "shared memory"
    tools.exchange(client, tools.commit(0), value=2.0)
    step = np.empty(SIZE, np.float32)
    client.fetch_step(0, step)
    np.testing.assert_array_equal(step, 2)
    bench.driver().command(stop=True)
    client.put_optimizer_state(1, -step, state.pack([step]))
    np.testing.assert_array_equal(bench.driver().center(), -2)


# -- killed -------------------------------------------------------------------------------------

WORKER = """
import sys
from distkeras_grid.parameter_server.client import WorkerClient
from distkeras_grid.parameter_server.settings import ServerAddress
host, port, name, key, size = sys.argv[1:]
address = ServerAddress(host, int(port), "\\0" + name)
client = WorkerClient.connect(address, bytes.fromhex(key), "test", 0, 0, int(size), 30)
client.ready(100)
print(client.transport, flush=True)
sys.stdin.read()
"""


def mappings(pid):
    """Return how many vectors a process has mapped that could be shared."""
    return sum("distkeras-grid" in line.path for line in psutil.Process(pid).memory_maps(False))


@pytest.mark.full
def test_a_killed_worker_and_a_killed_server_leave_nothing(tools):
    key, settings = new_key(), tools.settings(trainable_size=SIZE)
    gc.collect()
    before = mappings(os.getpid())
    with ServerProcess(settings, np.zeros(SIZE, np.float32), key) as server:
        own = seat_key(key, 0).hex()
        place = server.address
        name = place.unix_name.removeprefix("\0")
        arguments = [place.host, str(place.port), name, own, str(SIZE)]
        worker = subprocess.Popen(
            [sys.executable, "-c", WORKER, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        with worker:
            assert worker.stdout.readline().strip() == "shared memory"
            assert mappings(server.pid) == 2
            worker.send_signal(signal.SIGKILL)
            worker.wait(10)
        tools.wait_until(lambda: mappings(server.pid) == 0)
        client = client_module.WorkerClient.connect(
            place, bytes.fromhex(own), "test", 0, 1, SIZE, 10
        )
        with client:
            client.ready(100)
            assert tools.exchange(client, tools.commit(0))[1] == 1
            os.kill(server.pid, signal.SIGKILL)
            server._started.process.wait(10)
            # What was lent outlives its owner, so that reading it cannot kill the reader.
            np.testing.assert_array_equal(client._session.channel.connection._lent[1], 1)
        del client
    gc.collect()
    tools.wait_until(lambda: mappings(os.getpid()) <= before)
