"""What runs the tests: groups that stay in one process, and the suites of the mutants."""

from __future__ import annotations

import os

from tests.mutants import PACKAGE, SUITES


def test_this_test_is_in_the_group_of_its_file(request):
    """Without a word, pytest-xdist ignores groups that it cannot write into a test's identifier."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        assert request.node.nodeid.endswith(f"@{request.node.path}")


def test_each_module_of_the_mutants_and_each_of_its_suites_is_there(project):
    """`python -m tests.mutants` runs for hours, so a name that is gone would be found too late."""
    suites = {f"tests/{PACKAGE}/{name}" for names in SUITES.values() for name in names}
    named = suites | {f"{PACKAGE}/{name}" for name in SUITES}
    assert {name for name in named if not (project / name).is_file()} == set()
