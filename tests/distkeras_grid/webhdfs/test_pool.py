"""Many files: what fails, what goes on, what an interrupt stops. The files are invented."""

from __future__ import annotations

import io
import threading
import time

import pytest

from distkeras_grid.errors import (
    ConfigurationError,
    NoSpaceError,
    OutputExistsError,
    StorageError,
)
from distkeras_grid.progress import surface
from distkeras_grid.webhdfs.addresses import Address
from distkeras_grid.webhdfs.connection import WebHdfsConnection
from distkeras_grid.webhdfs.pool import (
    GIVE_UP,
    ConnectionPool,
    TransferResult,
    check_threads,
    failure,
)
from distkeras_grid.webhdfs.transfer_plan import TransferItem
from distkeras_grid.webhdfs.transfer_status import Meter, transfer_progress

ITEMS = [TransferItem(f"{number}", f"/raw/{number}", size=number) for number in range(100)]


def pool(threads: int = 3) -> tuple[ConnectionPool, io.StringIO, threading.Event]:
    stream, stopped = io.StringIO(), threading.Event()
    progress = transfer_progress("sending", surface(stream))
    return (
        ConnectionPool(Address(("http://localhost:1",), "ada"), threads, progress, stopped),
        stream,
        stopped,
    )


def test_each_file_goes_once_and_each_thread_has_one_connection() -> None:
    users: dict[int, set[WebHdfsConnection]] = {}
    seen: list[TransferItem] = []

    def transfer(connection: WebHdfsConnection, item: TransferItem, meter: Meter) -> bool:
        users.setdefault(threading.get_ident(), set()).add(connection)
        seen.append(item)
        time.sleep(0.001)
        return item.size % 2 == 0

    done = pool()[0].run(ITEMS, transfer)
    assert sorted(seen, key=ITEMS.index) == ITEMS
    assert 1 < len(users) <= 3
    assert all(len(used) == 1 for used in users.values())
    assert done == TransferResult(50, 2450, 50, 2500, done.seconds)


def test_a_failure_is_told_and_the_others_go_on() -> None:
    def transfer(connection: WebHdfsConnection, item: TransferItem, meter: Meter) -> bool:
        meter.add(item.size)
        if item.size == 7:
            raise NoSpaceError("/raw/7: full")
        return True

    used, stream, _ = pool()
    with pytest.raises(NoSpaceError, match=r"^1 of 100 files failed.* /raw/7: full$"):
        used.run(ITEMS, transfer)
    assert stream.getvalue() == "/raw/7: full\n"
    assert used._progress.state.files == 99
    assert used._progress.state.size == sum(item.size for item in ITEMS) - 7


def test_where_nothing_succeeds_any_more_the_rest_is_not_tried() -> None:
    tried = []

    def transfer(connection: WebHdfsConnection, item: TransferItem, meter: Meter) -> bool:
        tried.append(item)
        if item.size >= 10:
            raise StorageError("refused")
        return True

    with pytest.raises(StorageError, match="20 of 100 files failed, 70 were not tried any more"):
        pool(threads=1)[0].run(ITEMS, transfer)
    assert len(tried) == 10 + GIVE_UP


def test_failures_with_successes_between_them_never_end_it() -> None:
    def transfer(connection: WebHdfsConnection, item: TransferItem, meter: Meter) -> bool:
        if item.size % 10:
            raise StorageError("refused")
        return True

    with pytest.raises(StorageError, match=r"^90 of 100 files failed"):
        pool(threads=1)[0].run(ITEMS, transfer)


def test_a_defect_stops_all_and_shows_itself() -> None:
    tried = []

    def transfer(connection: WebHdfsConnection, item: TransferItem, meter: Meter) -> bool:
        tried.append(item)
        if len(tried) == 3:
            raise ZeroDivisionError("a defect")
        time.sleep(0.01)
        return True

    used, _, stopped = pool()
    with pytest.raises(ZeroDivisionError):
        used.run(ITEMS, transfer)
    assert stopped.is_set()
    assert len(tried) < 50


def test_files_that_an_interrupt_ends_are_not_told_one_by_one() -> None:
    used, stream, stopped = pool(threads=1)

    def transfer(connection: WebHdfsConnection, item: TransferItem, meter: Meter) -> bool:
        stopped.set()
        raise StorageError("stopped")

    with pytest.raises(StorageError):
        used.run(ITEMS, transfer)
    assert stream.getvalue() == ""


@pytest.mark.parametrize("threads", [0, -1, 65])
def test_a_number_of_threads_that_makes_no_sense(threads: int) -> None:
    with pytest.raises(ConfigurationError, match=f"Received: {threads}"):
        check_threads(threads)


def test_failures_are_one_error_that_tells_each_reason_once() -> None:
    full = [(TransferItem(f"{n}", f"/raw/{n}"), NoSpaceError(f"/raw/{n}: full")) for n in range(3)]
    error = failure(full, files=9, not_tried=4)
    assert type(error) is NoSpaceError
    assert str(error).startswith("3 of 9 files failed, 4 were not tried any more. The same command")
    assert str(error).endswith("/raw/0: full (so did 2 more)")
    other = StorageError("/raw/x: broken")
    other.add_note("a half stays")
    both = failure([*full, (TransferItem("x", "/raw/x"), other)], files=9, not_tried=0)
    assert type(both) is StorageError
    assert str(both).endswith("(so did 2 more) | /raw/x: broken a half stays")


def test_the_error_of_the_only_file_is_its_own() -> None:
    error = failure(
        [(TransferItem("x", "/raw/x"), OutputExistsError("there"))], files=1, not_tried=0
    )
    assert (type(error), str(error)) == (OutputExistsError, "there")
