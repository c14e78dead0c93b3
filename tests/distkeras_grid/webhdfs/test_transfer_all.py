"""Many files: what fails, what goes on, what an interrupt stops. The files are invented."""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Callable, Container
from dataclasses import dataclass, field

import pytest

from distkeras_grid.errors import NoSpaceError, OutputExistsError, StorageError
from distkeras_grid.progress import one_line
from distkeras_grid.webhdfs.addresses import Address
from distkeras_grid.webhdfs.connection import WebHdfsConnection
from distkeras_grid.webhdfs.operations import transfer_progress
from distkeras_grid.webhdfs.transfer_plan import TransferItem
from distkeras_grid.webhdfs.transfers import (
    GIVE_UP,
    Meter,
    TransferProgress,
    TransferResult,
    TransferStatus,
    failure,
    transfer_all,
)

ITEMS = [TransferItem(f"{number}", f"/raw/{number}", size=number) for number in range(100)]
Copy = Callable[[WebHdfsConnection, TransferItem, Meter], bool]


@dataclass
class Run:
    """A transfer to nowhere, and what it tells."""

    stream: io.StringIO = field(default_factory=io.StringIO)
    stopped: threading.Event = field(default_factory=threading.Event)
    progress: TransferProgress | None = None

    def __call__(self, copy: Copy, threads: int = 3) -> TransferResult:
        self.progress = transfer_progress("sending", self.stream)
        nowhere = Address(("http://localhost:1",), "ada")
        return transfer_all(nowhere, threads, ITEMS, copy, self.progress, self.stopped)


def test_each_file_goes_once_and_each_thread_has_one_connection() -> None:
    users: dict[int, set[WebHdfsConnection]] = {}
    seen: list[TransferItem] = []

    def transfer(connection: WebHdfsConnection, item: TransferItem, meter: Meter) -> bool:
        users.setdefault(threading.get_ident(), set()).add(connection)
        seen.append(item)
        time.sleep(0.001)
        return item.size % 2 == 0

    done = Run()(transfer)
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

    used = Run()
    with pytest.raises(NoSpaceError, match=r"^1 of 100 files failed.* /raw/7: full$"):
        used(transfer)
    assert used.stream.getvalue() == "/raw/7: full\n"
    assert used.progress is not None
    assert used.progress.state.files == 99
    assert used.progress.state.amount == sum(item.size for item in ITEMS) - 7


@pytest.mark.parametrize(
    ("fails", "told", "count"),
    [
        (range(10, 100), "^20 of 100 files failed, 70 were not tried any more", 10 + GIVE_UP),
        # With successes between them failures never end it.
        ({*range(100)} - {*range(0, 100, 10)}, r"^90 of 100 files failed\.", 100),
    ],
)
def test_where_nothing_succeeds_any_more_the_rest_is_not_tried(
    fails: Container[int], told: str, count: int
) -> None:
    tried = []

    def transfer(connection: WebHdfsConnection, item: TransferItem, meter: Meter) -> bool:
        tried.append(item)
        if item.size in fails:
            raise StorageError("refused")
        return True

    with pytest.raises(StorageError, match=told):
        Run()(transfer, threads=1)
    assert len(tried) == count


def test_a_defect_stops_all_and_shows_itself() -> None:
    tried = []

    def transfer(connection: WebHdfsConnection, item: TransferItem, meter: Meter) -> bool:
        tried.append(item)
        if len(tried) == 3:
            raise ZeroDivisionError("a defect")
        time.sleep(0.01)
        return True

    used = Run()
    with pytest.raises(ZeroDivisionError):
        used(transfer)
    assert used.stopped.is_set()
    assert len(tried) < 50


def test_files_that_an_interrupt_ends_are_not_told_one_by_one() -> None:
    used = Run()

    def transfer(connection: WebHdfsConnection, item: TransferItem, meter: Meter) -> bool:
        used.stopped.set()
        raise StorageError("stopped")

    with pytest.raises(StorageError):
        used(transfer)
    assert used.stream.getvalue() == ""


def test_failures_are_one_error() -> None:
    full = [NoSpaceError(f"/raw/{n}: full") for n in range(7)]
    error = failure(full, files=12, not_tried=4)
    assert type(error) is NoSpaceError
    assert str(error).startswith(
        "7 of 12 files failed, 4 were not tried any more. The same command"
    )
    assert str(error).endswith("| /raw/4: full | and 2 more")
    other = StorageError("/raw/x: broken")
    other.add_note("a half stays")
    both = failure([*full[:1], other], files=9, not_tried=0)
    assert type(both) is StorageError
    assert str(both).endswith("/raw/0: full | /raw/x: broken a half stays")
    only = failure([OutputExistsError("there")], files=1, not_tried=0)
    assert (type(only), str(only)) == (OutputExistsError, "there")


def test_failures_stand_in_front_and_an_unknown_rate_is_not_told() -> None:
    failed = TransferStatus("sending", 2_000_000, 500_000, 3, 10, failed=2)
    assert one_line(failed.parts(0.0, 5.0)) == (
        "sending  2 failed  3 of 10 files  500 kB of 2.0 MB"
    )
    looking = TransferStatus("looking", files=1234)
    assert one_line(looking.parts(0.0, 3.0)) == "looking  1,234 files  3 s"


def test_a_short_transfer_is_silent_on_plain_lines() -> None:
    with transfer_progress("looking", stream := io.StringIO()) as progress:
        progress.begin(TransferStatus("sending", total_files=1, total=1))
        progress.add(files=1, done=1)
    assert stream.getvalue() == ""
