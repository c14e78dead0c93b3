"""Small mistakes in the cores, one at a time: each has to make a test fail.

    .venv/bin/python -m tests.mutants                                      # all of SUITES: hours
    .venv/bin/python -m tests.mutants parameter_server/ledger.py --lines 250-330
    .venv/bin/python -m tests.mutants --faults                # what FAULTS names: half an hour

No file is changed. A process of its own imports the module with one condition negated, one bound
moved or one statement left out, and runs the tests that ought to notice until the first fails. What
survives is printed: it needs a test, or makes no difference that anybody could see. The latter
stands in `ACCEPTED` with the reason; for all else the exit code is 1.
"""

from __future__ import annotations

import argparse
import ast
import copy
import importlib.abc
import importlib.machinery
import importlib.util
import os
import resource
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import hypothesis
import numpy as np
import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = "distkeras_grid"
#: A mutant that computes longer, or waits longer, does not end: it is noticed. The first is seconds
#: of the processor, so that a busy machine notices nothing.
SECONDS, WAITING = 120, 1200.0

SERVER = tuple(
    f"parameter_server/test_{name}.py"
    for name in (
        "events",
        "ledger",
        "center_snapshots",
        "gradient_log",
        "center",
        "atomic_folds",
        "server_core",
        "broken_core",
    )
)
#: Every fault at every point: the last resort, as it takes longest.
PRODUCT = "../invariants/test_fault_product.py"
#: The tests that ought to notice a mistake in a module, the quickest first.
SUITES = {
    "parameter_server/membership.py": (*SERVER, PRODUCT),
    "parameter_server/ledger.py": (*SERVER, PRODUCT),
    "parameter_server/gradient_log.py": SERVER,
    "parameter_server/worker_steps.py": SERVER,
    "parameter_server/server_checkpoint.py": (*SERVER, PRODUCT),
    "parameter_server/waiters.py": SERVER,
    "parameter_server/center.py": SERVER,
    "parameter_server/center_snapshots.py": SERVER,
    "parameter_server/server_core.py": (
        *SERVER,
        "parameter_server/test_worker_state_store.py",
        PRODUCT,
    ),
    "parameter_server/events.py": SERVER,
    "parameter_server/worker_state_store.py": (
        "parameter_server/test_worker_state_store.py",
        "parameter_server/test_server_core.py",
    ),
    "parameter_server/checkpoint_state.py": (
        "parameter_server/test_checkpoint_state.py",
        "../invariants/test_checkpoint.py",
        "worker/test_worker_state.py",
    ),
    "parameter_server/commit_filter.py": (
        "parameter_server/test_server_core.py",
        "test_outliers.py",
    ),
    "parameter_server/shards.py": (
        "parameter_server/test_shards.py",
        "parameter_server/test_sharded_client.py",
    ),
    "parameter_server/sharded_process.py": ("parameter_server/test_sharded_process.py",),
    "parameter_server/messages.py": ("parameter_server/test_connection.py",),
    "parameter_server/connection.py": ("parameter_server/test_connection.py",),
    "parameter_server/frames.py": (
        "parameter_server/test_frames.py",
        "parameter_server/test_connection.py",
    ),
    "parameter_server/retry_budget.py": ("parameter_server/test_retry_budget.py",),
    "worker/worker_core.py": ("worker/test_worker_core.py",),
    "parameter_server/run_monitor.py": (
        "parameter_server/test_run_monitor.py",
        PRODUCT,
    ),
    "parameter_server/retry_policy.py": ("parameter_server/test_retry_policy.py",),
    "trainers/checkpoint_writer.py": ("trainers/test_checkpoint_writer.py",),
    "trainers/resume.py": ("trainers/test_resume.py",),
    "../data_prep/dataset/commit.py": ("../data_prep/dataset/test_commit.py",),
    "checkpoints.py": ("test_checkpoints.py", "spark/test_checkpoints.py"),
    "spark/checkpoints.py": ("spark/test_checkpoints.py",),
    "spark/atomic_output.py": ("trainers/test_saving.py", "cli/test_preflight.py"),
    "local_sets/tile_index.py": (
        "local_sets/test_tile_index.py",
        "../invariants/test_local_sets.py",
    ),
    "local_sets/sampler.py": ("../invariants/test_local_sets.py",),
    "stores/rendezvous.py": ("stores/test_rendezvous.py",),
}

#: What is done about faults: the functions that do it, by what they promise and by their module.
FAULTS: dict[str, dict[str, tuple[str, ...]]] = {
    "an attempt that was replaced changes nothing": {
        "parameter_server/membership.py": ("join", "is_of_attempt", "is_current", "current"),
    },
    "all workers start at once, each with the rows that it can have": {
        "parameter_server/membership.py": ("ready", "present", "start"),
        "parameter_server/ledger.py": ("may_start",),
        "parameter_server/server_core.py": ("_ready",),
    },
    "a commit counts once": {"parameter_server/ledger.py": ("admit", "repeat")},
    "a commit is of a window that its worker has": {
        "parameter_server/ledger.py": ("_unfit", "_unfit_local")
    },
    "a commit is as old as the version that it names": {"parameter_server/ledger.py": ("info",)},
    "nothing that is not finite is folded, and a fold is whole": {
        "parameter_server/ledger.py": ("check_finite",),
        "parameter_server/center.py": ("_begin", "_end", "_changed"),
        "parameter_server/server_core.py": (
            *("_fold", "_stop", "_begin_anew", "_open_gate", "_break"),
        ),
    },
    "a checkpoint is of one moment": {
        "parameter_server/events.py": ("hold", "go_on", "after"),
        "parameter_server/server_checkpoint.py": (
            *("begin", "stop_waiting", "_complete", "_capture", "keep", "part", "asks"),
        ),
        "parameter_server/server_core.py": (*("_begin_checkpoint", "_poll"),),
    },
    "a connection that breaks loses nothing": {
        "parameter_server/membership.py": ("resume", "lose"),
        "parameter_server/server_core.py": ("_join", "_resume", "_lose", "_repeat"),
        "parameter_server/waiters.py": ("drop", "copy", "sessions"),
        "parameter_server/worker_state_store.py": ("asks", "awaits", "receive", "lose"),
    },
    "each state has its deadline, and then the worker is started again": {
        "parameter_server/run_monitor.py": (
            *("see", "_place", "_on_update", "_record", "_due", "_restarts"),
            *("restart", "state"),
        ),
        "parameter_server/retry_policy.py": ("allows", "exhausted"),
    },
    "a run goes on without those it need not wait for": {
        "parameter_server/run_monitor.py": ("_begin", "_enough"),
        "parameter_server/membership.py": ("needed", "missing", "finish", "over"),
        "parameter_server/ledger.py": ("finish",),
        "parameter_server/server_core.py": ("_close_round",),
    },
    "only who is to blame is named": {
        "parameter_server/run_monitor.py": ("_error", "_describe", "describe")
    },
    "a checkpoint is whole, and the newest two are kept": {
        "checkpoints.py": ("check", "piece", "numbers_of", "unused_rows"),
        "spark/checkpoints.py": (
            *("newest", "_newest_of", "write", "_publish", "_delete_old", "_read", "_manifest"),
        ),
    },
    "a driver that was replaced writes nothing": {
        "checkpoints.py": ("precedes",),
        "spark/checkpoints.py": (
            *("begin", "_take_over", "_discard", "check_own", "_generation_in"),
            "is_of_former_attempt",
        ),
    },
    "a saved run is whole": {
        "spark/atomic_output.py": (
            *("publish", "_set_aside", "_names", "_put_back", "check_existing"),
            *("interrupted_replacement", "finish_replacement", "_give_name"),
        ),
    },
}

#: Mutants that make no difference that anybody could see, and why, by their module and by the line
#: that is printed of them.
ACCEPTED: dict[str, dict[str, str]] = {}

LEFT_OUT = (ast.Assign, ast.AugAssign, ast.Delete, ast.Raise, ast.Expr)
OTHER_SIGN: dict[type, type] = {
    **{ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt},
    **{ast.Add: ast.Sub, ast.Sub: ast.Add, ast.And: ast.Or, ast.Or: ast.And},
}
#: No code, the wording of an error, or what a class is made by.
PASSED_OVER = {
    ast.JoinedStr: ("values",),
    ast.Raise: ("exc", "cause"),
    ast.ClassDef: ("keywords", "decorator_list"),
}
#: Arguments that change no outcome, but what is shown or refused of a programmer's own mistake.
OUTWARD = ("repr", "strict", "flush", "daemon")


@dataclass(frozen=True)
class Mutant:
    """A module with one mistake: where it is, the code there before and after, the whole."""

    line: int
    before: str
    after: str
    code: CodeType


def mutants(source: str, name: str) -> Iterator[Mutant]:
    """Yield the mutants of a module, each as soon as it is made."""
    module = ast.parse(source)
    for parent, field, at, node in places(module):
        for other in instead_of(node):
            put(parent, field, at, other)
            ast.fix_missing_locations(module)
            code = compile(module, name, "exec")
            put(parent, field, at, node)
            yield Mutant(node.lineno, told(node), told(other), code)


def lines_of(source: str, functions: Sequence[str]) -> set[int]:
    """Return the lines of functions, by their names; of methods, too."""
    found = [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef) and node.name in functions
    ]
    if missing := set(functions) - {node.name for node in found}:
        raise LookupError(f"There is no function {', '.join(sorted(missing))}.")
    return {line for node in found for line in range(node.lineno, (node.end_lineno or 0) + 1)}


def fault_handling() -> dict[str, set[int]]:
    """Return the lines of each module that `FAULTS` names."""
    lines: dict[str, set[int]] = {}
    for modules in FAULTS.values():
        for name, functions in modules.items():
            source = (ROOT / PACKAGE / name).read_text(encoding="utf-8")
            lines.setdefault(name, set()).update(lines_of(source, functions))
    return lines


def places(parent: ast.AST) -> Iterator[tuple[ast.AST, str, int | None, Any]]:
    """Yield each node below another, with its parent, the field there and the place in a list."""
    for field, value in ast.iter_fields(parent):
        if field in PASSED_OVER.get(type(parent), ()):
            continue
        for at, node in enumerate(value) if isinstance(value, list) else ((None, value),):
            if isinstance(node, ast.keyword) and node.arg in OUTWARD:
                continue
            if isinstance(node, ast.AST):
                yield parent, field, at, node
                yield from places(node)


def put(parent: ast.AST, field: str, at: int | None, node: ast.AST) -> None:
    """Put a node in the place of another."""
    if at is None:
        setattr(parent, field, node)
    else:
        getattr(parent, field)[at] = node


def instead_of(node: Any) -> list[ast.AST]:
    """Return what may stand for a node by mistake."""
    if isinstance(node, LEFT_OUT):
        is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        return [] if is_text else [ast.copy_location(ast.Pass(), node)]
    if isinstance(node, (ast.If, ast.While, ast.IfExp)):
        return [changed(node, test=ast.UnaryOp(ast.Not(), node.test))]
    if isinstance(node, ast.Return) and isinstance(node.value, (ast.Compare, ast.BoolOp)):
        return [changed(node, value=ast.UnaryOp(ast.Not(), node.value))]
    if isinstance(node, (ast.ListComp, ast.GeneratorExp, ast.SetComp, ast.DictComp)):
        first, *rest = node.generators
        return [changed(node, generators=[changed(first, ifs=[]), *rest])] if first.ifs else []
    return other_values(node)


def other_values(node: Any) -> list[ast.AST]:
    """Return what may stand for an operation or a number."""
    if isinstance(node, ast.Compare):
        signs = [[*node.ops] for _ in node.ops]
        for at, sign in enumerate(node.ops):
            signs[at][at] = OTHER_SIGN.get(type(sign), type(sign))()
        known = [each for at, each in enumerate(signs) if type(node.ops[at]) in OTHER_SIGN]
        return [changed(node, ops=each) for each in known]
    if isinstance(node, ast.BoolOp):
        return [changed(node, op=OTHER_SIGN[type(node.op)]()), *shorter(node)]
    if isinstance(node, ast.BinOp) and type(node.op) in OTHER_SIGN:
        return [changed(node, op=OTHER_SIGN[type(node.op)]())]
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        other = not node.value if isinstance(node.value, bool) else node.value + 1
        return [changed(node, value=other)]
    return []


def shorter(node: ast.BoolOp) -> list[ast.AST]:
    """Return a condition of several parts with each of them left out."""
    if len(node.values) == 2:
        return list(reversed(node.values))
    parts = [[part for part in node.values if part is not out] for out in node.values]
    return [changed(node, values=rest) for rest in parts]


def changed(node: Any, **fields: Any) -> Any:
    """Return a copy of a node with other fields."""
    other = copy.copy(node)
    for field, value in fields.items():
        setattr(other, field, value)
    return other


def told(node: Any) -> str:
    """Return the code of a node, of which a line is enough."""
    first = ast.unparse(node).splitlines()[0]
    return first if len(first) < 100 else f"{first[:97]}..."


class Loader(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports one module from given code, and all others as ever."""

    def __init__(self, module: str, file: Path, code: CodeType) -> None:
        self._module, self._file, self._code = module, file, code

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._module:
            return None
        return importlib.util.spec_from_file_location(fullname, self._file, loader=self)

    def exec_module(self, module: ModuleType) -> None:
        exec(self._code, module.__dict__)


def survives(module: str, file: Path, mutant: Mutant, tests: Sequence[str]) -> bool:
    """Run the tests on a mutant in a process of its own; return whether all of them pass."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
            sys.meta_path.insert(0, Loader(module, file, mutant.code))
            code = tested(tests)
        finally:
            os._exit(code)
    until = time.monotonic() + WAITING
    while time.monotonic() < until:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status) == 0
        time.sleep(0.02)
    os.kill(child, 9)
    os.waitpid(child, 0)
    return False


def tested(tests: Sequence[str]) -> int:
    """Run tests without a word; return 0 if all of them pass."""
    silent = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(silent, stream)
    # What the caller has set for a pytest of its own, such as --basetemp, is not for this one.
    os.environ.pop("PYTEST_ADDOPTS", None)
    # Hypothesis has been imported before pytest could rewrite its assertions.
    options = ("-W", "ignore::pytest.PytestAssertRewriteWarning", "--hypothesis-seed=0")
    # A JVM or TensorFlow for each mutant would take longer than all the rest.
    options = (*options, "-m", "not full and not spark and not tensorflow")
    return int(pytest.main([*tests, *options, "-x", "-q", "-p", "no:cacheprovider"]))


def main() -> int:
    """Print what survives of the modules that the command line names.

    Returns 1 if something does that `ACCEPTED` does not excuse.
    """
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("module", nargs="*", default=list(SUITES), help="a key of SUITES")
    parser.add_argument("--lines", default="1-100000", help="FIRST-LAST, of each module")
    parser.add_argument("--faults", action="store_true", help="only what FAULTS names")
    given = parser.parse_args()
    first, last = map(int, given.lines.split("-"))
    chosen = fault_handling() if given.faults else {}
    os.chdir(ROOT)
    # A failure is enough: nobody reads its smallest example. What few examples miss needs a test of
    # its own, in which the reader sees it.
    hypothesis.settings.register_profile(
        "mutants",
        phases=(hypothesis.Phase.explicit, hypothesis.Phase.generate),
        max_examples=25,
        database=None,
        deadline=None,
    )
    hypothesis.settings.load_profile("mutants")
    # Imported once for all.
    np.zeros(1)
    left = 0
    for name in given.module:
        if given.faults and name not in chosen:
            continue
        lines = chosen.get(name, set(range(first, last + 1))) & set(range(first, last + 1))
        left += unexcused(name, lines)
    return int(left > 0)


def unexcused(name: str, lines: set[int]) -> int:
    """Try the mutants of a module on some lines; return how many survive without an excuse."""
    file = ROOT / os.path.normpath(f"{PACKAGE}/{name}")
    module = ".".join(file.relative_to(ROOT).with_suffix("").parts)
    tests = [f"tests/{PACKAGE}/{each}" for each in SUITES[name]]
    source = file.read_text(encoding="utf-8")
    whole = Mutant(0, "", "", compile(source, str(file), "exec"))
    if not survives(module, file, whole, tests):
        sys.exit(f"The tests of {name} fail on the module as it is.")
    alive = excused = count = 0
    for mutant in mutants(source, str(file)):
        if mutant.line not in lines:
            continue
        count += 1
        if survives(module, file, mutant, tests):
            alive += 1
            change = f"{mutant.before}  ->  {mutant.after}"
            reason = ACCEPTED.get(name, {}).get(change, "")
            excused += bool(reason)
            say(f"{name}:{mutant.line}: {change}" + (f"  (accepted: {reason})" if reason else ""))
    say(f"{name}: {alive} of {count} mutants survive, {excused} of them accepted")
    return alive - excused


def say(line: str) -> None:
    """Write a line at once: an hour passes between the first and the last."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
