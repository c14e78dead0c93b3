"""How a change of a data set of tiles becomes visible: plans of file operations, without I/O.

A run writes what is new below the data set under names that readers skip and that carry its id:
``_new-N.ID`` for a shard, ``_dataset.ID`` for the manifest to come. To publish, it creates
``_update.json``, which one run can do alone, compares the manifest with the one that it began with,
gives the shards their names, and renames ``_dataset.ID`` to ``_dataset.json``. **That one rename is
the decision.** Before it nothing has happened; after it former shards are deleted.

A run that was taken for dead, but was only suspended, cannot do harm when it wakes up. Each of its
steps renames a file that carries its id, and the run that took over has deleted those files first,
the manifest to come before all others. It has looked again until it found none.

If the new manifest lists the replaced one as a former version, it is kept as ``_versions/N.json``
(`data_prep.dataset.history`). Shards that a kept version lists are not deleted.

A plan is a generator. It yields operations, gets their results, and knows neither paths nor a file
system; `execute` carries them out. ``_update.json`` holds numbers and digests, and no names.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Generator, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Protocol, TypeAlias, TypeVar

import msgspec

from data_prep.dataset.croissant import FILE as CROISSANT
from data_prep.dataset.readme_card import FILE as PAGE
from data_prep.splits.fingerprint_store import FOLDER as LIKENESS
from data_prep.splits.fingerprint_store import SUFFIX
from distkeras_grid.errors import (
    UNREADABLE,
    BusyError,
    DataError,
    GridError,
    OutputExistsError,
    PathNotFoundError,
    SchemaError,
    StorageError,
)
from distkeras_grid.spark.dataframes import JOURNAL, MANIFEST, read_shards
from distkeras_grid.spark.folder_lease import ID as _ID
from distkeras_grid.spark.folder_lease import OWNER, owner_name
from distkeras_grid.spark.versions import FOLDER as VERSIONS
from distkeras_grid.spark.versions import file_of, read_history

# How often a run that takes over looks for files of dead ones. It looks more than twice only if one
# woke up meanwhile, and that one writes only a few files before it notices.
ROUNDS = 20
T = TypeVar("T")
Outcome: TypeAlias = Literal["finished", "undone"]

# Files are deleted in this order: first what a run decides by, last what says that it is alive.
_HIDDEN = tuple(
    re.compile(rf"{kind}\.({_ID})")
    for kind in ("_dataset", "_lock", "_version", r"_old-\d+", r"_new-\d+")
)
# The same names as patterns of `fnmatch`, for code that lists a data set.
HIDDEN = ("_owner.*", "_dataset.*", "_lock.*", "_version.*", "_new-*.*", "_old-*.*")
_NEW = re.compile(rf"_new-(\d{{1,18}})\.({_ID})")
_SHARD = re.compile(r"shard=(\d{1,18})")
_NUMBERED = re.compile(r"(?:shard=|_new-|_old-)(\d{1,18})(?:\.|\Z)")
_VERSION = re.compile(rf"{VERSIONS}/(\d{{1,18}})\.json")
# Names that `Storage` gives to files until they are whole: descriptions, and fingerprints.
_CARD = re.compile(rf"_(?:{re.escape(CROISSANT)}|{re.escape(PAGE)})\.{_ID}\.tmp")
_PRINTS = re.compile(rf"{LIKENESS}/_{_ID}{re.escape(SUFFIX)}\.{_ID}\.tmp")
_NAMES = (
    *(*_HIDDEN, OWNER, _SHARD, _VERSION, _CARD, _PRINTS),
    re.compile(r"_(dataset|update)\.json"),
)

Number: TypeAlias = Annotated[int, msgspec.Meta(ge=0, lt=10**18)]
Digest: TypeAlias = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}\\Z")]
RunId: TypeAlias = Annotated[str, msgspec.Meta(pattern=f"^{_ID}\\Z")]


@dataclass(frozen=True, slots=True)
class Names:
    """List the data set, or a folder of it; the result is empty if it is missing."""

    folder: str = ""


@dataclass(frozen=True, slots=True)
class Read:
    """Read a file; the result is None if it is missing."""

    name: str


@dataclass(frozen=True, slots=True)
class Write:
    """Write a file in place: if the run is killed meanwhile, a part of the file is left."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class Move:
    """Rename a file or a folder in one step; the result is False if it is missing.

    If the target exists and is not a file to be replaced, an `OutputExistsError` is raised. The
    folder of the target is made if it is missing.
    """

    source: str
    target: str
    replace: bool = False


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete a file, or a folder with its content; the result tells whether it was there."""

    name: str


Operation: TypeAlias = Names | Read | Write | Move | Delete
Plan: TypeAlias = Generator[Operation, Any, T]


@dataclass
class ShardDelta:
    """The numbers of the shards that are added and removed."""

    come: list[int] = field(default_factory=list)  # New shards, still under their `new_name`
    go: list[int] = field(default_factory=list)  # Shards that the new manifest does not list

    def __bool__(self) -> bool:
        return bool(self.come or self.go)


class CommitRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of ``_update.json``: which change is being published, by which run."""

    owner: RunId  # Id of the run
    come: tuple[Number, ...]  # come and go: See `ShardDelta`
    go: tuple[Number, ...]
    basis: Digest | None  # SHA-256 of the former manifest, None if there was none
    manifest: Digest  # SHA-256 of the new manifest


class HeadManifest(msgspec.Struct, frozen=True):
    """The highest numbers so far, as ``_dataset.json`` tells them."""

    # The highest shard number so far; if it is missing, all numbers count as used
    last_shard: Annotated[int, msgspec.Meta(ge=-1, le=10**18)] = 10**18
    # Number of the last publication
    last_update: Annotated[int, msgspec.Meta(ge=-1, lt=10**18)] = -1


class DatasetFiles(Protocol):
    """The methods of `distkeras_grid.spark.storage.Storage` that are needed here."""

    def exists(self, uri: str) -> bool: ...  # noqa: D102
    def list_names(self, uri: str) -> list[str]: ...  # noqa: D102
    def make_dirs(self, uri: str) -> None: ...  # noqa: D102
    def read_text(self, uri: str) -> str: ...  # noqa: D102
    def write_in_place(self, uri: str, content: str) -> None: ...  # noqa: D102
    def rename(self, source: str, target: str, *, overwrite: bool = False) -> None: ...  # noqa: D102
    def delete(self, uri: str) -> bool: ...  # noqa: D102


def execute(files: DatasetFiles, root: str, plan: Plan[T]) -> T:
    """Carry out a plan below a folder; return what the plan returns."""
    try:
        operation = next(plan)
        while True:
            try:
                result = _do(files, root, operation)
            except GridError as error:
                operation = plan.throw(error)
            else:
                operation = plan.send(result)
    except StopIteration as end:
        value: T = end.value
        return value


def _do(files: DatasetFiles, root: str, operation: Operation) -> Any:
    match operation:
        # No check first whether it exists: another run may delete it at any moment.
        case Names(folder):
            try:
                return files.list_names(f"{root}/{folder}".rstrip("/"))
            except PathNotFoundError:
                return []
        case Read(name):
            try:
                return files.read_text(_at(root, name))
            except PathNotFoundError:
                return None
        case Write(name, text):
            return files.write_in_place(_at(root, name), text)
        case Move(source, target, replace):
            return _move(files, root, source, target, replace=replace)
        case Delete(name):
            return files.delete(_at(root, name))


def _move(files: DatasetFiles, root: str, source: str, target: str, *, replace: bool) -> bool:
    uri, place = _at(root, source), _at(root, target)
    # What has been moved is not an error, although its target exists.
    if not files.exists(uri):
        return False
    if "/" in target:
        files.make_dirs(place.rpartition("/")[0])
    try:
        files.rename(uri, place, overwrite=replace)
    except PathNotFoundError:
        return False
    return True


def _at(root: str, name: str) -> str:
    """Return the path of a name, if it is one that this module uses."""
    if not any(known.fullmatch(name) for known in _NAMES):
        raise DataError(f"{name!r} is not a name in a data set of tiles. Nothing was done with it.")
    return f"{root}/{name}"


def shard_name(number: int) -> str:
    """Return the name of a shard's folder."""
    return f"shard={number}"


def new_name(number: int, owner: str) -> str:
    """Return the hidden name of a shard that a run writes."""
    return f"_new-{number}.{owner}"


def owner_of(name: str) -> str | None:
    """Return the id of the run to which a hidden name belongs, None for any other name.

    Examples
    --------
    >>> owner_of("_new-3." + "0" * 32) == "0" * 32, owner_of("_new-3.mine"), owner_of("shard=3")
    (True, None, None)
    """
    match = next((m for kind in (*_HIDDEN, OWNER) if (m := kind.fullmatch(name))), None)
    return match.group(1) if match else None


def owners(names: Iterable[str], journal: str | None) -> set[str]:
    """Return the ids of all runs that left something: file names, or the file ``_update.json``."""
    ids = {owner for name in names if (owner := owner_of(name))}
    return ids | ({read_decision(journal).owner} if journal is not None else set())


def read_decision(text: str) -> CommitRecord:
    """Read ``_update.json``."""
    try:
        return msgspec.json.decode(text, type=CommitRecord)
    except UNREADABLE as error:
        raise DataError(
            f"{JOURNAL} is not what a run writes there ({error}). Nothing was changed. Look who "
            "wrote it, and move it away."
        ) from error


def digest(text: str | None) -> str | None:
    """Return the SHA-256 of a manifest, None if there is none."""
    return None if text is None else hashlib.sha256(text.encode()).hexdigest()


def publish(owner: str, change: ShardDelta, manifest: str, basis: str | None) -> Plan[None]:
    """Publish a change."""
    decision = CommitRecord(
        owner, tuple(change.come), tuple(change.go), digest(basis), str(digest(manifest))
    )
    yield from _check_ownership(decision)
    yield Write(f"_dataset.{owner}", manifest)
    yield Write(f"_lock.{owner}", msgspec.json.encode(decision).decode())
    yield Move(f"_lock.{owner}", JOURNAL)
    # Local file systems rename without checking the target: the second run replaced the first.
    journal = yield Read(JOURNAL)
    if journal is None or read_decision(journal).owner != owner or (yield Read(MANIFEST)) != basis:
        raise _concurrent_update_error()
    yield from _check_ownership(decision)
    yield from _carry_out(decision, basis, manifest)


def _check_ownership(decision: CommitRecord) -> Plan[None]:
    names = set((yield Names()))
    mine = {owner_name(decision.owner)}
    mine |= {new_name(number, decision.owner) for number in decision.come}
    if mine - names:
        raise _concurrent_update_error()


def _concurrent_update_error() -> OutputExistsError:
    return OutputExistsError(
        "Another run changed this data set meanwhile, so that nothing was published. Run this one "
        "again, both with the same --lock."
    )


def _carry_out(
    decision: CommitRecord, basis: str | None, manifest: str | None = None
) -> Plan[None]:
    """Carry out the steps of a change that are not done yet."""
    # The run that wrote the manifest need not read it, which can be large.
    new = manifest or (yield Read(f"_dataset.{decision.owner}"))
    if new is None:
        raise _concurrent_update_error()
    yield from _remember(decision.owner, basis, new)
    for number in decision.come:
        yield Move(new_name(number, decision.owner), shard_name(number))
    names = set((yield Names()))
    if any(shard_name(number) not in names for number in decision.come):
        raise _concurrent_update_error()
    if not (yield Move(f"_dataset.{decision.owner}", MANIFEST, replace=True)):
        raise _concurrent_update_error()
    yield from _finish(decision, new)


def _remember(owner: str, basis: str | None, manifest: str) -> Plan[None]:
    """Keep the replaced manifest, if the new one lists it.

    A run that comes late writes the same content under that number.
    """
    if basis is None:
        return
    number = read_last(basis).last_update
    if number in {each.number for each in read_history(manifest, MANIFEST).history}:
        yield Write(f"_version.{owner}", basis)
        yield Move(f"_version.{owner}", file_of(number), replace=True)


def _finish(decision: CommitRecord, manifest: str | None) -> Plan[None]:
    """Delete the shards that a published change has replaced."""
    named = _named(manifest)
    yield from _forget(manifest)
    yield from _drop(set(decision.go) - named, decision.owner)
    yield from _release(decision.owner)


def _forget(manifest: str | None) -> Plan[None]:
    """Delete the manifests of versions that are not kept, before any of their shards."""
    history = () if manifest is None else read_history(manifest, MANIFEST).history
    numbers = {version.number for version in history}
    for name in (yield Names(VERSIONS)):
        path = f"{VERSIONS}/{name}"
        if (match := _VERSION.fullmatch(path)) and int(match.group(1)) not in numbers:
            yield Delete(path)


def _drop(numbers: Iterable[int], owner: str) -> Plan[None]:
    for number in sorted(numbers):
        # Deleting takes a while, and readers that list the folder must not see half of it.
        yield Move(shard_name(number), f"_old-{number}.{owner}")
        yield Delete(f"_old-{number}.{owner}")


def _release(owner: str) -> Plan[None]:
    journal = yield Read(JOURNAL)
    if journal is not None and read_decision(journal).owner == owner:
        yield Delete(JOURNAL)


def _named(manifest: str | None) -> set[int]:
    return set() if manifest is None else shards_of(manifest)


def shards_of(manifest: str) -> set[int]:
    """Return the numbers of the shards that a manifest needs, also for former versions."""
    former = read_history(manifest, MANIFEST).history
    names = {*read_shards(manifest, MANIFEST), *(name for each in former for name in each.shards)}
    return {int(name.removeprefix("shard=")) for name in names}


@dataclass(frozen=True)
class RecoveryResult:
    """What a run found when it took over a data set."""

    outcome: Outcome | None  # What became of a change that was being published
    # The highest shard number that any run has used, -1 if there is none. A run that was taken for
    # dead may still delete shards with its numbers, so they are not used again.
    last: int


def recover_commit(dead: Collection[str]) -> Plan[RecoveryResult]:
    """Do what `recover` does, for a run that is alone because all others are dead.

    It also deletes shards that were never published and that no ``_update.json`` lists: their
    numbers are above the last number of the manifest. And it deletes files that were not whole yet.
    Their names do not tell the run, but no run lives that could still write them.
    """
    taken = yield from _end(dead, finish=True)
    manifest = yield Read(MANIFEST)
    if manifest is not None:
        last = read_last(manifest).last_shard
        names = yield Names()
        numbers = {int(match.group(1)) for name in names if (match := _SHARD.fullmatch(name))}
        orphans = {number for number in numbers - _named(manifest) if number > last}
        for name in (shard_name(number) for number in sorted(orphans)):
            yield Delete(name)
    for name in (yield Names()):
        if _CARD.fullmatch(name):
            yield Delete(name)
    for name in (yield Names(LIKENESS)):
        if _PRINTS.fullmatch(path := f"{LIKENESS}/{name}"):
            yield Delete(path)
    return taken


def read_last(manifest: str) -> HeadManifest:
    """Return the highest numbers so far."""
    try:
        return msgspec.json.decode(manifest, type=HeadManifest)
    except UNREADABLE as error:
        raise SchemaError(
            f"{MANIFEST} is not the manifest of a data set of tiles: {error}. Nothing was changed. "
            "Tile into another output, or look who wrote it."
        ) from error


def recover(dead: Collection[str], *, finish: bool = True) -> Plan[Outcome | None]:
    """Finish or undo what dead runs were publishing, and delete what they left.

    A change is finished if everything it needs is there and the data set is still the one for
    which it was planned. Otherwise it is undone.
    """
    ended = yield from _end(dead, finish=finish)
    return ended.outcome


def _end(dead: Collection[str], *, finish: bool) -> Plan[RecoveryResult]:
    """Do what `recover` does, until nothing of the dead runs is left.

    A run that was only suspended may wake up meanwhile, and write files after all were listed. Once
    a round finds no file of it, it publishes nothing more: its new manifest is gone, and without
    its sign of life it does not begin another one.
    """
    outcome: Outcome | None = None
    used = {-1}
    for _ in range(ROUNDS):
        journal = yield Read(JOURNAL)
        if journal is not None:
            decision = read_decision(journal)
            used.update(decision.come)
            if decision.owner in dead:
                outcome = yield from _conclude(decision, finish=finish)
        names = yield Names()
        used |= {int(match.group(1)) for name in names if (match := _NUMBERED.match(name))}
        left = _left_by(dead, names)
        if not left:
            return RecoveryResult(outcome, max(used))
        for name in left:
            yield from _remove(name)
    raise BusyError(
        "A run that was taken for dead goes on writing into this data set. Nothing was published. "
        f"Received: {', '.join(sorted(left))}. End that run, and run this one again."
    )


def _left_by(dead: Collection[str], names: Iterable[str]) -> list[str]:
    """Return which names belong to dead runs, in the order in which they are to be deleted."""
    theirs = [name for name in names if owner_of(name) in dead]
    return [name for kind in (*_HIDDEN, OWNER) for name in theirs if kind.fullmatch(name)]


def _remove(name: str) -> Plan[None]:
    if match := _NEW.fullmatch(name):
        # Deleting takes a while, and a run that wakes up meanwhile must not publish half of it. The
        # next round deletes it.
        number, owner = match.groups()
        yield Move(name, f"_old-{number}.{owner}")
    else:
        yield Delete(name)


def _conclude(decision: CommitRecord, *, finish: bool) -> Plan[Outcome]:
    basis = yield Read(MANIFEST)
    current = digest(basis)
    names = set((yield Names()))
    is_decided = current == decision.manifest
    if finish and not is_decided and current == decision.basis and _is_complete(decision, names):
        # This fails if the run was not dead and continues, or if a rename is refused. A change
        # that cannot be finished is undone.
        with suppress(StorageError):
            yield from _carry_out(decision, basis)
            return "finished"
    # Without this file no run can decide. If it was missing, a run may just have decided.
    yield Delete(f"_dataset.{decision.owner}")
    manifest = yield Read(MANIFEST)
    if digest(manifest) == decision.manifest:
        yield from _finish(decision, manifest)
        return "finished"
    named = _named(manifest)
    for number in decision.come:
        is_hidden = yield Delete(new_name(number, decision.owner))
        if not is_hidden and number not in named:
            yield from _drop([number], decision.owner)
    yield from _release(decision.owner)
    return "undone"


def _is_complete(decision: CommitRecord, names: set[str]) -> bool:
    """Tell whether the manifest is there, and each shard once, under one of its two names."""
    return f"_dataset.{decision.owner}" in names and all(
        (new_name(number, decision.owner) in names) != (shard_name(number) in names)
        for number in decision.come
    )
