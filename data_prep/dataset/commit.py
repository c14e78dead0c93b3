"""The commit of a version of a data set of tiles.

A run writes its shards under names of its own, ``shard=N-RUN``, and no file in them ever changes.
They are read once a manifest lists them. To commit, the run writes the manifest of the version that
follows the one it began with, ``_versions/N.json``, under a hidden name, and renames it. **That
rename is the commit.** It fails if the name exists, so of two runs that began with the same version
the later one gets an error, however slow it was. (In object stores, and on local disks without hard
links, the name is only looked for before the rename.) A run that is killed before the rename has
changed nothing, and one that is killed after it is complete.

Nothing else is needed to agree: no lock, no sign of life and no journal. `vacuum` deletes what
killed runs and former versions leave.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Collection, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Self

import msgspec

from data_prep.dataset.croissant import FILE as CROISSANT
from data_prep.dataset.manifest import DataSet
from data_prep.dataset.readme_card import FILE as PAGE
from data_prep.splits.fingerprint_store import FOLDER as FINGERPRINTS
from distkeras_grid.dataset.versions import (
    FOLDER,
    file_of,
    numbers_in,
    present_manifest,
    present_number,
)
from distkeras_grid.errors import (
    BusyError,
    GridError,
    OutputExistsError,
    PathNotFoundError,
    StorageError,
)
from distkeras_grid.progress import Say
from distkeras_grid.signals import is_interrupt
from distkeras_grid.spark.cancel import stop_work
from distkeras_grid.spark.storage import Storage

# What no kept version lists is deleted once it is so old. A run may still work on it: an archive of
# 100,000 images takes a day or two on a cluster, and clocks of drivers may differ by hours. A run
# must not work for longer: another one would delete its shards.
VACUUM_AGE = timedelta(days=7)
_TIME = "%Y%m%dT%H%M%S"
_SHARD = re.compile(r"shard=\d{1,18}(?:-(\d{8}T\d{6})-[0-9a-f]{8})?")
# Names that `Storage` gives to files until they are whole.
_PARTIAL = re.compile(r"_.+\.[0-9a-f]{32}\.tmp")
PARTIAL = tuple(f"_{name}.*.tmp" for name in (CROISSANT, PAGE))


def run_id(now: datetime) -> str:
    """Return a name for a run, which tells when it began."""
    return f"{now.astimezone(UTC):{_TIME}}-{uuid.uuid4().hex[:8]}"


def read_head(files: Storage, root: str) -> DataSet | None:
    """Return the present version of a data set; None if there is none."""
    present = present_manifest(root, files.list_names, files.exists, files.read_bytes)
    if present is None:
        return None
    number, content = present
    return DataSet.from_text(content, f"{root}/{file_of(number)}")


def require_head(files: Storage, root: str) -> DataSet:
    """Return the present version of a data set; refuse a path without one."""
    head = read_head(files, root)
    if head is None:
        raise PathNotFoundError(f"There is no data set of tiles in {root}. Check the path.")
    return head


class Transaction:
    """The shards that one run writes, and its commit; an error deletes what is not committed.

    `head`: the version that the run began with; None if there is none.
    """

    def __init__(self, files: Storage, root: str, head: DataSet | None) -> None:
        self.head = head
        self._files = files
        self._root = root
        self._run = run_id(datetime.now(UTC))
        self._last = -1 if head is None else head.manifest.last_shard
        self._names: dict[int, str] = {}  # Shards that this run has written, by number
        self._is_new = not files.exists(root)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, error: BaseException | None, *__: object) -> None:
        if error is None:
            return
        if is_interrupt(error):
            stop_work()
        try:
            # An interrupt can come between the rename and its answer.
            head = read_head(self._files, self._root)
            for name in set(self._names.values()) - _listed(head):
                self._files.delete(f"{self._root}/{name}")
            if self._is_new:
                self._files.delete_empty(self._root)
        except GridError as second:
            error.add_note(f"what this run has written is deleted by a later one: {second}")

    @property
    def last_shard(self) -> int:
        """The highest number of a shard so far."""
        return self._last

    @property
    def pending(self) -> set[int]:
        """The numbers of the shards that this run has written."""
        return set(self._names)

    def new_shard(self) -> tuple[int, str]:
        """Return the number of a new shard, and the path of its folder."""
        self._last += 1
        self._names[self._last] = f"shard={self._last}-{self._run}"
        return self._last, self.folder(self._last)

    def name(self, number: int) -> str:
        """Return the name of a shard of the head, or of one that this run has written."""
        return self._names.get(number) or (self.head.shards[number] if self.head else "")

    def folder(self, number: int) -> str:
        """Return the path of a shard."""
        return f"{self._root}/{self.name(number)}"

    def discard(self, number: int) -> None:
        """Delete a shard that this run has written."""
        self._files.delete(self.folder(number))
        del self._names[number]

    def commit(self, content: Mapping[str, Any]) -> DataSet:
        """Commit the version after the head; return it."""
        number = content["last_update"]
        uri = f"{self._root}/{file_of(number)}"
        there = set(self._files.list_names(self._root)) if self._names else set()
        if lost := set(self._names.values()) - there:
            raise StorageError(
                f"{self._root}/{min(lost)} is gone, which this run has written. Nothing was "
                "committed. Run it again."
            )
        for name in self._names.values():
            self._files.persist(f"{self._root}/{name}")
        self.check()
        manifest = {**content, "run": self._run}
        text = msgspec.json.encode(manifest).decode() + "\n"
        # What cannot be read must not become the present version.
        head = DataSet.from_text(text, uri)
        # After another error, such as of a disk that does not keep the name, nobody knows whether
        # this was committed: it is raised, and the next run goes on from what it finds.
        try:
            self._files.write_text(uri, text)
        except OutputExistsError as error:
            # A client that got no answer asks again, and is told of its own file.
            if self._files.read_bytes(uri) != text.encode():
                raise self._conflict(number) from error
        return head

    def check(self) -> None:
        """Refuse to go on if the head is not the present version any more."""
        present = present_number(self._root, self._files.list_names, self._files.exists)
        if present != (None if self.head is None else self.head.manifest.last_update):
            raise self._conflict(present)

    def _conflict(self, present: int | None) -> BusyError:
        return BusyError(
            f"{self._root} has {'no version' if present is None else f'version {present}'} by now: "
            "another run has changed it while this one worked, so nothing of this one was "
            "committed. Run it again, when no other one works on this data set."
        )


def uncommitted(names: Collection[str], head: DataSet | None) -> list[str]:
    """Return which of the names in a data set are shards that no kept version lists."""
    listed = _listed(head)
    return sorted(name for name in names if _SHARD.fullmatch(name) and name not in listed)


def _listed(head: DataSet | None) -> set[str]:
    if head is None:
        return set()
    former = (name for each in head.manifest.history for name in each.shards)
    return {*head.shards.values(), *former}


def vacuum(files: Storage, root: str, say: Say) -> None:
    """Delete what no kept version lists and is a week old; see `VACUUM_AGE`.

    These are shards of runs that began so long ago, manifests of former versions, and files that a
    killed run has left half written. If this fails, the data set is still valid.
    """
    before = datetime.now(UTC) - VACUUM_AGE
    try:
        names = files.list_names(root)
        # Read after the listing: what was committed until then is listed by it.
        head = require_head(files, root)
        current = {file_of(each.number) for each in head.manifest.history}
        gone = [
            file
            for number in numbers_in(files.list_names(f"{root}/{FOLDER}"))
            if number < head.manifest.last_update
            and (file := file_of(number)) not in current
            and _is_older(files, f"{root}/{file}", before)
        ]
        gone += [name for name in uncommitted(names, head) if _was_written(name, before)]
        for folder in ("", *{FOLDER, FINGERPRINTS}.intersection(names)):
            place = f"{folder}/" if folder else ""
            gone += [
                f"{place}{name}"
                for name in files.list_names(f"{root}/{folder}".rstrip("/"))
                if _PARTIAL.fullmatch(name) and _is_older(files, f"{root}/{place}{name}", before)
            ]
        for name in gone:
            files.delete(f"{root}/{name}")
    except GridError as error:
        say(f"what former versions and killed runs have left could not be deleted: {error}")


def _was_written(name: str, before: datetime) -> bool:
    """Tell whether the run that wrote a shard began before a time."""
    match = _SHARD.fullmatch(name)
    # Until layout 2 names had no time, and nobody writes such shards any more.
    return match is None or not match.group(1) or match.group(1) < f"{before:{_TIME}}"


def _is_older(files: Storage, uri: str, before: datetime) -> bool:
    try:
        return files.modified(uri) < before.timestamp()
    except PathNotFoundError:
        return False
