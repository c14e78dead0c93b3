"""What runs the tests: groups that stay in one process."""

from __future__ import annotations

import os


def test_this_test_is_in_the_group_of_its_file(request):
    """Without a word, pytest-xdist ignores groups that it cannot write into a test's identifier."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        assert request.node.nodeid.endswith(f"@{request.node.path}")
