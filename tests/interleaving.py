"""All ways in which several drivers can meet on one file system, each stopped after any operation.

The file system is a mapping in memory that does each operation whole or not at all, as HDFS does.
The code under test runs as it is, without threads: an actor is replayed from the results that its
operations have had so far, until it asks for one more. Two orders of operations that leave the same
files, and have told each actor the same, are one `State`, so all orders can be looked at.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias
from unittest.mock import patch

from distkeras_grid.errors import GridError, OutputExistsError, PathNotFoundError

#: Files and their contents; None for a directory that was made.
Disk: TypeAlias = dict[str, bytes | None]
Operation: TypeAlias = tuple[Any, ...]


def _inside(disk: Disk, uri: str) -> list[str]:
    return sorted(path for path in disk if path.startswith(f"{uri}/"))


def perform(disk: Disk, operation: Operation) -> Any:
    """Do one operation; what it raises changes nothing."""
    name, uri, *more = operation
    return _OPERATIONS[name](disk, uri, *more)


def _exists(disk: Disk, uri: str) -> bool:
    return uri in disk or bool(_inside(disk, uri))


def _list(disk: Disk, uri: str) -> tuple[str, ...]:
    if not _exists(disk, uri):
        raise PathNotFoundError(uri)
    if disk.get(uri) is not None:
        return (uri.rpartition("/")[2],)
    return tuple(
        sorted({path.removeprefix(f"{uri}/").split("/")[0] for path in _inside(disk, uri)})
    )


def _read(disk: Disk, uri: str) -> bytes:
    content = disk.get(uri)
    if content is None:
        raise PathNotFoundError(uri)
    return content


def _put(disk: Disk, uri: str, content: bytes) -> None:
    disk[uri] = content


def _make(disk: Disk, uri: str) -> None:
    disk.setdefault(uri, None)


def _create(disk: Disk, uri: str, content: bytes) -> None:
    if _exists(disk, uri):
        raise OutputExistsError(uri)
    disk[uri] = content


def _rename(disk: Disk, uri: str, target: str, overwrite: bool) -> None:
    # In this order, as `Storage` asks.
    if _exists(disk, target) and not overwrite:
        raise OutputExistsError(target)
    if not _exists(disk, uri):
        raise PathNotFoundError(uri)
    for path in [uri, *_inside(disk, uri)]:
        if path in disk:
            disk[target + path.removeprefix(uri)] = disk.pop(path)


def _delete(disk: Disk, uri: str) -> bool:
    there = [path for path in (uri, *_inside(disk, uri)) if path in disk]
    for path in there:
        del disk[path]
    return bool(there)


def _delete_empty(disk: Disk, uri: str) -> bool:
    return not _inside(disk, uri) and uri in disk and disk.pop(uri) is None


def _delete_one(disk: Disk, uri: str) -> bool:
    """Delete one file of a directory, or the empty directory; return whether more may be there."""
    there = [*_inside(disk, uri), uri]
    return disk.pop(there[0], None) is not None or len(there) > 1


_OPERATIONS: dict[str, Callable[..., Any]] = {
    **{"exists": _exists, "list": _list, "read": _read, "put": _put, "make": _make},
    **{"create": _create, "rename": _rename, "delete": _delete, "delete one": _delete_one},
    "delete empty": _delete_empty,
}


class Files:
    """What drivers use of `Storage`; `do` does an operation.

    `piecewise`: a directory is deleted file by file, as on a local disk.
    `hidden`: a file that is written has a hidden name first. Otherwise it is one operation.
    """

    def __init__(
        self, do: Callable[[Operation], Any], *, piecewise: bool = False, hidden: bool = False
    ) -> None:
        self._do, self._piecewise, self._hidden = do, piecewise, hidden
        self._names = itertools.count()

    def exists(self, uri: str) -> bool:
        return self._do(("exists", uri))

    def list_names(self, uri: str) -> list[str]:
        return list(self._do(("list", uri)))

    def read_bytes(self, uri: str) -> bytes:
        return self._do(("read", uri))

    def read_text(self, uri: str) -> str:
        return self.read_bytes(uri).decode()

    def write_in_place(self, uri: str, text: str) -> None:
        self._do(("put", uri, text.encode()))

    def read_lines(self, uri: str) -> Iterator[str]:
        yield from self.read_text(uri).splitlines(keepends=True)

    def make_dirs(self, uri: str) -> None:
        self._do(("make", uri))

    def write_bytes(self, uri: str, content: bytes, *, overwrite: bool = False) -> None:
        if not self._hidden:
            self._do(("put" if overwrite else "create", uri, bytes(content)))
            return
        hidden = self.hidden_beside(uri)
        try:
            self._do(("put", hidden, bytes(content)))
            self.rename(hidden, uri, overwrite=overwrite)
        except GridError:
            self.delete(hidden)
            raise

    def write_text(self, uri: str, text: str, *, overwrite: bool = False) -> None:
        self.write_bytes(uri, text.encode(), overwrite=overwrite)

    def write_lines(self, uri: str, lines: Any) -> None:
        self.write_text(uri, "".join(lines))

    def rename(self, source: str, target: str, *, overwrite: bool = False) -> None:
        self._do(("rename", source, target, overwrite))

    def delete(self, uri: str) -> bool:
        if not self._piecewise:
            return self._do(("delete", uri))
        there = self.exists(uri)
        while self._do(("delete one", uri)):
            pass
        return there

    def persist(self, uri: str) -> None:
        """HDFS and this model need not be told."""

    def delete_empty(self, uri: str) -> bool:
        return self._do(("delete empty", uri))

    def discard(self, uri: str, error: BaseException) -> None:  # noqa: ARG002
        self.delete(uri)

    def resolve(self, uri: str) -> str:
        return uri

    def hidden_beside(self, uri: str, ending: str = "tmp") -> str:
        folder, _, name = uri.rpartition("/")
        return f"{folder}/_{name}.{self.token()}.{ending}"

    def token(self) -> str:
        return f"{next(self._names):032x}"


def at_once(disk: Disk) -> Files:
    """Return the files of one who is alone: each operation is done when it is asked for."""
    return Files(lambda operation: perform(disk, operation))


class _Asks(BaseException):
    """An actor asks for an operation."""


class _Replay:
    """Answers operations from a log, and stops at the first that is not in it."""

    def __init__(self, log: list[Any]) -> None:
        self._log, self._done = log, 0
        self.asked: Operation | None = None

    def do(self, operation: Operation) -> Any:
        if self.asked is None and self._done == len(self._log):
            self.asked = operation
        if self.asked is not None:
            # Whatever it does to clean up: it has not got so far.
            raise _Asks
        result = self._log[self._done]
        self._done += 1
        if isinstance(result, Exception):
            raise result
        return result


@dataclass(frozen=True)
class Ended:
    """How an actor has ended: what it returned, or its error."""

    value: Any = None
    error: GridError | None = None


@dataclass(frozen=True)
class State:
    """What can be seen between two operations: the files, and the actors that have ended."""

    disk: Disk
    ended: Mapping[str, Ended]


@dataclass(frozen=True)
class _Reached:
    """Files, what each actor has seen, who did the last operation, and the switches so far."""

    disk: Disk
    logs: tuple[int, ...]
    last: int | None = None
    switches: int = 0


class Exploration:
    """All states that actors can reach together.

    What an actor does is a function of its `Files`, and may depend on nothing else. `how` is that
    of `Files`.
    """

    def __init__(self, actors: Mapping[str, Callable[[Files], Any]], **how: bool) -> None:
        self._actors, self._how = actors, how
        # A log is a number: that of the log before, and the last result. 0 is empty.
        self._numbers: dict[tuple[int, str], int] = {}
        self._logs: list[tuple[int, Any]] = [(0, None)]
        self._next: dict[tuple[str, int], Operation | Ended] = {}

    def states(self, disk: Disk, switches: float = math.inf) -> Iterator[State]:
        """Yield each state that can be reached once from the files at the beginning.

        `switches`: how often one actor may stop and another go on. Defects need few switches, and
        the number of states grows fast with them.
        """
        waiting: deque[_Reached] = deque([_Reached(disk, tuple(0 for _ in self._actors))])
        known: set[Hashable] = set()
        yielded: set[Hashable] = set()
        while waiting:
            # In the order of their switches, so each is reached with as few as it needs.
            reached = waiting.popleft()
            place = (frozenset(reached.disk.items()), reached.logs)
            key = (place, reached.last if switches < math.inf else None)
            if key in known:
                continue
            known.add(key)
            asked = {
                name: self._asked(name, log)
                for name, log in zip(self._actors, reached.logs, strict=True)
            }
            if place not in yielded:
                yielded.add(place)
                ended = {name: each for name, each in asked.items() if isinstance(each, Ended)}
                yield State(dict(reached.disk), ended)
            for at, each in enumerate(asked.values()):
                if isinstance(each, Ended):
                    continue
                after = self._after(reached, at, each)
                if after.switches == reached.switches:
                    waiting.appendleft(after)
                elif after.switches <= switches:
                    waiting.append(after)

    def _after(self, reached: _Reached, at: int, operation: Operation) -> _Reached:
        """Return what is reached when an actor does its next operation."""
        disk = dict(reached.disk)
        log = self._longer(reached.logs[at], _result(disk, operation))
        switched = reached.last not in (None, at)
        logs = (*reached.logs[:at], log, *reached.logs[at + 1 :])
        return _Reached(disk, logs, at, reached.switches + switched)

    def _longer(self, log: int, result: Any) -> int:
        key = (log, repr(result))
        if key not in self._numbers:
            self._numbers[key] = len(self._logs)
            self._logs.append((log, result))
        return self._numbers[key]

    def _asked(self, name: str, log: int) -> Operation | Ended:
        """Return what an actor does next."""
        if (name, log) not in self._next:
            self._next[name, log] = self._replayed(name, log)
        return self._next[name, log]

    def _replayed(self, name: str, log: int) -> Operation | Ended:
        results = []
        while log:
            log, result = self._logs[log]
            results.append(result)
        replay = _Replay(results[::-1])
        files = Files(replay.do, **self._how)
        files.token = _tokens(name)  # type: ignore[method-assign]
        try:
            with patch("secrets.token_hex", _tokens(f"{name}'s ")):
                value = self._actors[name](files)
        except _Asks:
            assert replay.asked is not None
            return replay.asked
        except GridError as error:
            return Ended(error=error)
        return Ended(value)


def _result(disk: Disk, operation: Operation) -> Any:
    try:
        return perform(disk, operation)
    except GridError as error:
        return error


def _tokens(owner: str) -> Callable[..., str]:
    """Return a source of names that are the same in each replay, and no other actor's."""
    numbers = itertools.count()
    return lambda _=16: f"{owner.encode().hex()}{next(numbers):02}".rjust(32, "0")
