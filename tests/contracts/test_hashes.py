"""The requirements with hashes are those of setup.py, at the versions of constraints.txt."""

from __future__ import annotations

import re
from importlib.metadata import distribution

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

NAME = "distkeras_grid"
EXTRA = "tensorflow"
#: Tools that `pip freeze` leaves out of constraints.txt.
UNFROZEN = ("setuptools", "wheel")


def hashed(project):
    text = (project / "requirements-hashed.txt").read_text()
    found = {}
    for entry in re.sub(r"\\\n", "", re.sub("(?m)^ *#.*\n", "", text)).splitlines():
        told, *hashes = entry.split("--hash=sha256:")
        assert all(re.fullmatch("[0-9a-f]{64}", each.strip()) for each in hashes)
        requirement = Requirement(told.strip())
        found[canonicalize_name(requirement.name)] = requirement, len(hashes)
    return found


def pinned(project):
    lines = (project / "constraints.txt").read_text().splitlines()
    named = (line.split("==") for line in lines if "==" in line)
    return {canonicalize_name(name): version for name, version in named}


def needed(name, extras, python):
    """Return what a distribution needs, and what that needs, of the packages installed here."""
    found, waiting = {}, [(name, extras)]
    while waiting:
        name, extras = waiting.pop()
        for text in distribution(name).requires or ():
            requirement = Requirement(text)
            marker = requirement.marker
            environments = [{"extra": extra, **python} for extra in extras or {""}]
            if marker and not any(marker.evaluate(each) for each in environments):
                continue
            key = canonicalize_name(requirement.name)
            if found.get(key, set()) >= requirement.extras | {""}:
                continue
            found.setdefault(key, {""}).update(requirement.extras)
            waiting.append((requirement.name, requirement.extras | {""}))
    return set(found)


@pytest.mark.parametrize("minor", [11, 12, 13])
def test_every_package_that_is_needed_has_its_version_and_its_hashes(project, minor):
    python = {
        "python_version": f"3.{minor}",
        "python_full_version": f"3.{minor}.0",
        "sys_platform": "linux",
        "platform_machine": "x86_64",
    }
    found, versions = hashed(project), pinned(project)
    due = needed(NAME, {EXTRA, ""}, python)
    assert len(due) > 50
    here = {
        name
        for name, (requirement, _) in found.items()
        if requirement.marker is None or requirement.marker.evaluate(python)
    }
    assert here == due
    for name in here:
        requirement, hashes = found[name]
        assert hashes > 0
        if name in UNFROZEN:
            assert str(requirement.specifier).startswith("==")
        else:
            assert str(requirement.specifier) == f"=={versions[name]}"
