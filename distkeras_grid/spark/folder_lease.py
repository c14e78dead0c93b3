"""Which run works on a folder: its sign of life there, and the proof that a run is dead.

A run writes ``_owner.ID`` first, renews it while it works, and deletes it last. Another run that
finds this sign checks whether the process still exists, if both are on one machine. If the process
is on another machine, it waits for a change of the sign: clocks of two machines are never compared.
"""

from __future__ import annotations

import os
import re
import socket
import threading
import time
import uuid
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from types import TracebackType
from typing import Annotated, Self

import msgspec

from distkeras_grid.errors import UNREADABLE, BusyError, GridError, PathNotFoundError
from distkeras_grid.spark.storage import Storage

# Seconds between two signs of life.
BEAT_SECONDS = 10.0
# A run on another machine counts as dead if this many looks at its sign, each after a pause, find
# no change: 60 s. The number of looks counts, not a clock, so that a pause of the looking process
# or of the file system proves nothing about the other run.
LOOKS = 60
LOOK_SECONDS = 1.0
ID = r"[0-9a-f]{32}"
OWNER = re.compile(rf"_owner\.({ID})")
# Stands for the start of a process that exists, but whose status this user may not see.
UNKNOWN = "unknown"
# The runs of this process that are not over.
_RUNNING: set[str] = set()

Text = Annotated[str, msgspec.Meta(pattern=r"^[\w.:/-]{0,255}\Z")]


class LeaseRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A sign of life."""

    host: Text  # Name of the host, for messages
    # Name of this boot of the machine and its process namespace; empty if the system does not
    # reveal them
    machine: Text
    process: Annotated[int, msgspec.Meta(ge=1, lt=1 << 32)]  # Number of the process
    began: Text  # When the process began, in the machine's own unit
    beat: int  # Counter that grows with each sign


def read_sign(text: str | None) -> LeaseRecord | None:
    """Return a sign of life; None for a text that is none, such as a half-written one."""
    try:
        return None if text is None else msgspec.json.decode(text, type=LeaseRecord)
    except UNREADABLE:
        return None


def is_process_gone(sign: LeaseRecord, machine: str, began: Callable[[int], str | None]) -> bool:
    """Tell whether this machine can prove that the process of a sign is dead.

    `began`: returns when a process of this machine began, None if there is none, and `UNKNOWN` if
    that cannot be seen.

    Examples
    --------
    >>> sign = LeaseRecord(host="a", machine="1/2", process=7, began="55", beat=3)
    >>> is_process_gone(sign, "1/2", {7: "55"}.get), is_process_gone(sign, "1/2", {7: "99"}.get)
    (False, True)
    >>> is_process_gone(sign, "8/2", {}.get)  # elsewhere: nobody knows
    False
    """
    here = bool(machine) and sign.machine == machine
    return here and began(sign.process) not in (sign.began, UNKNOWN)


def this_machine() -> str:
    """Return a name for this boot of this machine and its process namespace."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{Path('/proc/self/ns/pid').stat().st_ino}"
    except OSError:
        return ""


def process_began(number: int) -> str | None:
    """Return when a process of this machine began; None if there is no such process.

    The result is `UNKNOWN` for processes of other users if the system hides them (``hidepid``).
    """
    try:
        status = Path(f"/proc/{number}/stat").read_text()
    except OSError:
        return UNKNOWN if _exists(number) else None
    # The name in brackets may contain anything. The start is field 22, 20 fields after the name.
    state, *rest = status.rpartition(")")[2].split()
    return None if state == "Z" else rest[18]


def _exists(number: int) -> bool:
    try:
        os.kill(number, 0)
    except PermissionError:
        return True
    except (OSError, OverflowError):
        return False
    return True


def owner_name(owner: str) -> str:
    """Return the name of the file that is a run's sign of life.

    Examples
    --------
    >>> owner_of(owner_name("0" * 32)) == "0" * 32
    True
    """
    return f"_owner.{owner}"


def owner_of(name: str) -> str | None:
    """Return the id of the run whose sign of life has this name; None for any other name."""
    match = OWNER.fullmatch(name)
    return match.group(1) if match else None


class FolderLease:
    """The right to change a folder, for as long as the ``with`` block runs.

    Subclasses define what runs leave behind, and what is done about it.
    """

    def __init__(self, storage: Storage, root: str, say: Callable[[str], object]) -> None:
        self.id = uuid.uuid4().hex
        self._storage = storage
        self._root = root
        self._say = say
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="sign of life", daemon=True)
        self._made = False
        self._sign = LeaseRecord(
            host=socket.gethostname()[:255],
            machine=this_machine(),
            process=os.getpid(),
            began=process_began(os.getpid()) or "",
            beat=0,
        )

    def __enter__(self) -> Self:
        """Write the sign of life; take over what dead runs have left."""
        self._made = not self._storage.exists(self._root)
        _RUNNING.add(self.id)
        try:
            self._show()
            self._thread.start()
            self.recover(self.find_dead())
        except BaseException as error:
            self._release(error)
            raise
        return self

    def owners(self) -> set[str]:
        """Return the ids of all runs that have left something."""
        names = self._storage.list_names(self._root)
        return {owner for name in names if (owner := owner_of(name))}

    def recover(self, dead: Collection[str]) -> None:
        """Finish or undo what dead runs began; no other run is active."""
        for owner in dead:
            self._storage.delete(f"{self._root}/{owner_name(owner)}")

    def cleanup(self) -> None:
        """Delete what this run leaves behind."""
        self._storage.delete(f"{self._root}/{owner_name(self.id)}")

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Sweep what this run leaves behind."""
        self._release(error)

    def _release(self, error: BaseException | None) -> None:
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join(BEAT_SECONDS)
        try:
            self.cleanup()
            if self._made:
                self._storage.delete_empty(self._root)
        except GridError as second:
            if error is None:
                raise
            error.add_note(f"what this run left is swept by the next: {second}")
        finally:
            _RUNNING.discard(self.id)

    def _show(self) -> None:
        text = msgspec.json.encode(self._sign).decode()
        self._storage.write_in_place(f"{self._root}/{owner_name(self.id)}", text)

    def _beat(self) -> None:
        uri = f"{self._root}/{owner_name(self.id)}"
        while not self._stopped.wait(BEAT_SECONDS):
            try:
                # A run that was taken for dead and swept must not write its sign again.
                if not self._storage.exists(uri):
                    return
                self._sign = msgspec.structs.replace(self._sign, beat=self._sign.beat + 1)
                self._show()
                if self._stopped.is_set():
                    # The run is over, and may have swept its sign before this write.
                    self._storage.delete(uri)
            except GridError as error:
                # The next sign may be written; if none is, publishing notices it.
                self._say(f"no sign of life could be written: {error}")

    @property
    def heartbeat_count(self) -> int:
        """Number of signs of life after the first one."""
        return self._sign.beat

    def find_dead(self) -> set[str]:
        """Return the ids of all other runs that left something; all are dead."""
        others = self.owners() - {self.id}
        first = {other: self.sign_of(other) for other in others}
        unsure = {
            each: text for each, text in first.items() if not self.is_process_gone(each, text)
        }
        if unsure:
            self._watch(unsure)
        return others

    def is_process_gone(self, other: str, text: str | None) -> bool:
        """Tell whether the run with this sign of life is dead for certain."""
        # The sign is the first thing that a run writes, and the last that it deletes.
        if text is None:
            return True
        sign = read_sign(text)
        if sign is None:
            return False
        mine = self._sign
        if (sign.machine, sign.process, sign.began) == (mine.machine, mine.process, mine.began):
            return bool(mine.machine) and other not in _RUNNING
        return is_process_gone(sign, mine.machine, process_began)

    def _watch(self, unsure: Mapping[str, str | None]) -> None:
        """Look at the signs until they have been silent long enough; raise if one changes."""
        for text in unsure.values():
            self._say(f"waiting whether {_described(text)} still works here ...")
        for _ in range(LOOKS):
            time.sleep(LOOK_SECONDS)
            now = {other: text for other in unsure if (text := self.sign_of(other)) is not None}
            for other, text in now.items():
                if text != unsure[other] or self._lives_here(text):
                    raise BusyError(
                        f"{_described(text)} works on {self._root}. Nothing was done. Wait until "
                        "it has ended."
                    )
            if not now:
                return

    def _lives_here(self, text: str) -> bool:
        sign = read_sign(text)
        if sign is None or not sign.machine or sign.machine != self._sign.machine:
            return False
        return process_began(sign.process) == sign.began

    def sign_of(self, other: str) -> str | None:
        """Return the sign of life of a run; None if there is none."""
        return self.text_of(owner_name(other))

    def text_of(self, name: str) -> str | None:
        """Return the content of a file; None if there is no such file."""
        # No check first whether it exists: a run that ends may delete it at any moment.
        try:
            return self._storage.read_text(f"{self._root}/{name}")
        except PathNotFoundError:
            return None


def _described(text: str | None) -> str:
    sign = read_sign(text)
    return f"process {sign.process} on {sign.host}" if sign else "another run"
