"""Figures of the source: sizes by package, files that are too long, names used twice, one commit.

``make house`` prints them. A commit is one exchange of DOWNPOUR with a server in this process:
every call of a function of this project counts, on both ends.
"""

from __future__ import annotations

import ast
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType

import numpy as np

ROOT = Path(__file__).parents[2]
PACKAGES = ("distkeras_grid", "data_prep", "jobs")
LONGEST_FILE = 600


@dataclass
class Sizes:
    """Lines of some files."""

    files: int = 0
    lines: int = 0
    docstrings: int = 0
    code: int = 0  # neither docstring, comment nor blank

    def add(self, source: str) -> None:
        """Add a file."""
        lines = source.splitlines()
        held = set(docstring_lines(source))
        self.files += 1
        self.lines += len(lines)
        self.docstrings += len(held)
        for number, line in enumerate(lines, 1):
            text = line.strip()
            self.code += bool(text) and not text.startswith("#") and number not in held


def docstring_lines(source: str) -> Iterator[int]:
    """Yield the numbers of all lines of docstrings."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, kinds) and ast.get_docstring(node, clean=False) is not None:
            first = node.body[0]
            yield from range(first.lineno, (first.end_lineno or first.lineno) + 1)


def sources(*folders: str) -> Iterator[tuple[Path, str]]:
    """Yield the path and the text of each module below folders of the project."""
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield path.relative_to(ROOT), path.read_text()


def print_sizes() -> None:
    """Print lines by package, and the files that are too long."""
    by_package: dict[str, Sizes] = defaultdict(Sizes)
    for path, text in sources(*PACKAGES, "tests"):
        by_package[str(path.parent if path.parts[0] != "tests" else "tests")].add(text)
        if path.parts[0] != "tests":
            by_package["all source"].add(text)
    print(f"{'':40} {'files':>6} {'lines':>7} {'code':>7} {'docstrings':>10}")
    for name, each in sorted(by_package.items()):
        share = each.docstrings / max(1, each.lines)
        print(f"{name:40} {each.files:6} {each.lines:7} {each.code:7} {share:10.1%}")
    counts = {path: text.count("\n") for path, text in sources(*PACKAGES)}
    print(f"\nfiles of more than {LONGEST_FILE} lines:")
    for path, lines in sorted(counts.items(), key=lambda item: -item[1]):
        if lines > LONGEST_FILE:
            print(f"  {lines:5} {path}")


def print_homonyms() -> None:
    """Print the names of classes that several modules define."""
    homes: dict[str, list[str]] = defaultdict(list)
    for path, text in sources(*PACKAGES):
        for node in ast.parse(text).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].append(str(path))
    found = {name: paths for name, paths in sorted(homes.items()) if len(paths) > 1}
    print(f"\nclasses of one name: {len(found)}")
    for name, paths in found.items():
        print(f"  {name}: {', '.join(paths)}")


@dataclass
class Calls:
    """What the threads of this process have called in the project."""

    on: bool = False
    functions: Counter[tuple[str, str]] = field(default_factory=Counter)
    deepest: int = 0

    def see(self, frame: FrameType, event: str, _: object) -> None:
        """Count a call; ``sys.setprofile`` calls this."""
        if self.on and event == "call" and _is_ours(frame):
            self.functions[frame.f_code.co_filename, frame.f_code.co_qualname] += 1
            self.deepest = max(self.deepest, _depth(frame))

    def describe(self) -> str:
        """Return the figures in one line."""
        files = {file for file, _ in self.functions}
        return (
            f"{self.functions.total()} calls of {len(self.functions)} functions in {len(files)} "
            f"files, at most {self.deepest} frames deep"
        )


def _is_ours(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith(str(ROOT / "distkeras_grid"))


def _depth(frame: FrameType | None) -> int:
    depth = 0
    while frame is not None:
        depth += _is_ours(frame)
        frame = frame.f_back
    return depth


def calls_of_a_commit() -> Calls:
    """Exchange four windows by TCP; return the calls of the fourth."""
    from distkeras_grid.parameter_server.auth import new_key, seat_key
    from distkeras_grid.parameter_server.client import WorkerClient
    from distkeras_grid.parameter_server.messages import WindowCommit
    from distkeras_grid.parameter_server.service import Service
    from distkeras_grid.parameter_server.settings import BindAddress, ServerSettings
    from distkeras_grid.spec import AlgorithmSpec, LayoutSpec, RuleSpec, RunSpec, ScheduleSpec

    calls = Calls()
    threading.setprofile(calls.see)
    spec = RunSpec(
        algorithm=AlgorithmSpec(rule=RuleSpec(name="downpour")),
        layout=LayoutSpec(trainable_size=100),
        schedule=ScheduleSpec(rows=1000, workers=1, batch_size=10, window=2, epochs=1),
    )
    settings = ServerSettings(run="r", spec=spec, place=BindAddress("127.0.0.1", "127.0.0.1"))
    key = new_key()
    service = Service(settings, np.zeros(100, np.float32), key)
    address = replace(service.address, unix_name=None)
    client = WorkerClient.connect(address, seat_key(key, 0), "r", 0, 0, 100, 10.0)
    version = client.ready(1000).version
    payload, reply = np.ones(100, np.float32), np.zeros(100, np.float32)
    sys.setprofile(calls.see)
    for number in range(4):
        commit = WindowCommit(
            *(number, version, 1, number, 2, 20, 0.1, {}, time.time(), 0.1),
        )
        calls.on = number == 3
        version = client.exchange(commit, payload, reply).version
    time.sleep(0.05)
    calls.on = False
    sys.setprofile(None)
    threading.setprofile(None)  # type: ignore[arg-type]
    client.finish()
    client.close()
    service.close()
    return calls


def main() -> None:
    """Print all figures."""
    print_sizes()
    print_homonyms()
    calls = calls_of_a_commit()
    print(f"\none commit of DOWNPOUR: {calls.describe()}")
    if "--calls" in sys.argv:
        for (file, name), count in calls.functions.items():
            print(f"  {count:3} {Path(file).relative_to(ROOT)} {name}")


if __name__ == "__main__":
    main()
