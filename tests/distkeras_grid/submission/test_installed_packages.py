"""What is packed: the closure of requirements, and the files of each distribution."""

from __future__ import annotations

import sys
from pathlib import Path, PurePosixPath

import pytest

from distkeras_grid.errors import ConfigurationError, EnvironmentMismatchError
from distkeras_grid.submission.installed_packages import (
    InstalledPackages,
    needed_distributions,
    parse_package,
)


class Site:
    """A site-packages folder with distributions as pip leaves them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def add(self, name: str, *requires: str, record: bool = True, origin: str = "") -> None:
        info = self.folder / f"{name}-1.0.dist-info"
        info.mkdir()
        lines = [f"Requires-Dist: {need}" for need in requires]
        info.joinpath("METADATA").write_text(
            "\n".join(["Metadata-Version: 2.1", f"Name: {name}", "Version: 1.0", *lines, ""])
        )
        (self.folder / f"{name}.py").write_text("")
        if record:
            names = [f"{name}.py", f"{info.name}/METADATA", f"../../../bin/{name}"]
            info.joinpath("RECORD").write_text("".join(f"{each},,\n" for each in names))
        if origin:
            info.joinpath("direct_url.json").write_text(origin)

    def needed(self, *packages: str, backend: str = "tensorflow") -> list[InstalledPackages]:
        """What a job needs, if nothing but these distributions is installed."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "path", [str(self.folder)])
            return needed_distributions(packages, backend)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    site = Site(tmp_path)
    site.add(
        "distkeras_grid",
        *("keras>=3", "pyspark>=4", "absent; sys_platform == 'beos'"),
        *("tensorflow-cpu; extra == 'tensorflow'", "ruff; extra == 'dev'"),
        *("tensorflow[cuda]; extra == 'gpu'", "jax; extra == 'jax'"),
        record=False,
    )
    for name in ("pyspark", "numpy", "h5py", "pip"):
        site.add(name)
    # A circle, as there are some.
    site.add("keras", "numpy", "h5py")
    site.add("tensorflow_cpu", "keras", "pip")
    return site


def names(found: list[InstalledPackages]) -> list[str]:
    return [each.name for each in found]


def test_the_closure_follows_markers_and_leaves_spark_and_the_project_out(site: Site):
    assert names(site.needed()) == [*("h5py", "keras", "numpy", "tensorflow_cpu")]


def test_a_package_of_the_user_with_extras_and_what_it_needs(site: Site):
    site.add("mine", "numpy", "pip", "more; extra == 'more'")
    site.add("more", "pyspark")
    assert set(names(site.needed("mine[more]"))) == {
        *("h5py", "keras", "numpy", "tensorflow_cpu", "mine", "more")
    }
    assert "pip" in names(site.needed("pip"))


def test_an_extra_asked_for_later_is_followed(site: Site):
    site.add("first", "second", "third")
    site.add("third", "second[more]")
    site.add("second", "deep; extra == 'more'")
    site.add("deep")
    assert "deep" in names(site.needed("first"))


def test_the_gpu_build_serves_as_well(site: Site, tmp_path: Path):
    (tmp_path / "tensorflow_cpu-1.0.dist-info" / "METADATA").unlink()
    (tmp_path / "tensorflow_cpu-1.0.dist-info").rename(tmp_path / "gone")
    with pytest.raises(EnvironmentMismatchError, match=r"pip install 'distkeras_grid\[tensorflow"):
        site.needed()
    site.add("tensorflow", "nvidia; extra == 'cuda'")
    site.add("nvidia")
    assert {"tensorflow", "nvidia"} < set(names(site.needed()))


def test_a_job_on_jax_needs_no_tensorflow(site: Site):
    with pytest.raises(EnvironmentMismatchError, match=r"distkeras_grid\[jax\]"):
        site.needed(backend="jax")
    site.add("jax", "numpy")
    found = names(site.needed(backend="jax"))
    assert "jax" in found
    assert "tensorflow_cpu" not in found


def test_what_is_missing_is_named_with_who_needs_it(site: Site):
    site.add("mine", "lost>=2")
    with pytest.raises(EnvironmentMismatchError, match="lost is not installed, but mine needs it"):
        site.needed("mine")
    with pytest.raises(EnvironmentMismatchError, match="nowhere is not installed, but --with"):
        site.needed("nowhere")


@pytest.mark.parametrize(
    ("how", "is_working_copy"),
    [
        ({"record": False}, True),
        ({"origin": '{"dir_info": {"editable": true}, "url": "file:///x"}'}, True),
        # As uv writes it.
        ({"origin": '{"url":"file:///x","dir_info":{"editable":true}}'}, True),
        ({"origin": '{"dir_info": {}, "url": "file:///x"}'}, False),
        (
            {"origin": '{"dir_info": {"editable": false}, "url": "file:///\\"editable\\": true"}'},
            False,
        ),
        ({"origin": '{"archive_info": {}, "url": "https://x/mine.whl"}'}, False),
        ({"origin": "[]"}, False),
        ({"origin": ""}, False),
    ],
)
def test_a_distribution_whose_files_nobody_knows_is_named(site: Site, how, is_working_copy):
    site.add("mine", **how)
    if is_working_copy:
        with pytest.raises(EnvironmentMismatchError, match=r"mine 1\.0 is installed as a working"):
            site.needed("mine")
    else:
        assert "mine" in names(site.needed("mine"))


def test_files_are_those_of_the_record_without_scripts(site: Site):
    (found,) = (each for each in site.needed() if each.name == "numpy")
    assert found.pin == "numpy==1.0"
    assert found.files == (PurePosixPath("numpy.py"), PurePosixPath("numpy-1.0.dist-info/METADATA"))
    assert (found.folder / found.files[0]).is_file()


@pytest.mark.parametrize("text", ["numpy>=2", "numpy; python_version > '3'", "not a name"])
def test_only_a_name_is_a_package(text: str):
    with pytest.raises(ConfigurationError, match="--with takes"):
        parse_package(text)
