"""Folders that appear whole, replace only their like, and are never lost on the way."""

from pathlib import Path

import pytest

from distkeras_grid.errors import ConfigurationError, OutputExistsError, StorageError
from distkeras_grid.spark.atomic_output import Output, OutputKind
from distkeras_grid.spark.storage import Storage

pytestmark = pytest.mark.spark

KIND = OutputKind("box", marker="box.json", others=("part-*",))


@pytest.fixture
def storage(spark):
    return Storage(spark)


@pytest.fixture
def target(tmp_path):
    return tmp_path / "box"


@pytest.fixture
def old(target):
    """A complete folder of our own."""
    target.mkdir()
    (target / "box.json").write_text("old")
    (target / "part-0").write_text("old")
    return target


def write(storage, target, *, overwrite=False):
    with Output(storage, str(target), KIND, overwrite=overwrite).writing() as folder:
        storage.write_text(f"{folder}/part-0", "new")
        storage.write_text(f"{folder}/box.json", "new")


def content(folder):
    return {path.name: path.read_text() for path in folder.iterdir() if path.suffix != ".crc"}


NEW = {"part-0": "new", "box.json": "new"}
OLD = {"part-0": "old", "box.json": "old"}


@pytest.fixture
def failing(monkeypatch):
    """Let renames fail, one for each given end of the new name, and tell them."""

    def fail(error, *ends):
        rename = Storage.rename
        tried = []

        def sometimes(self, source, to, **options):
            if len(tried) < len(ends) and to.endswith(ends[len(tried)]):
                tried.append(to)
                raise error
            rename(self, source, to, **options)

        monkeypatch.setattr(Storage, "rename", sometimes)
        return tried

    return fail


def test_a_new_folder_appears_with_all_its_files(storage, target):
    write(storage, target / "below" / "it")
    assert content(target / "below" / "it") == NEW
    assert [path.name for path in (target / "below").iterdir()] == ["it"]


def test_an_empty_folder_counts_as_missing(storage, target, tmp_path):
    target.mkdir()
    Output(storage, str(target), KIND).check()
    write(storage, target)
    assert content(target) == NEW
    assert list(tmp_path.iterdir()) == [target]


def test_a_folder_of_ours_is_replaced_on_demand_only(storage, old, tmp_path):
    with pytest.raises(OutputExistsError, match=r"holds a box already.*--overwrite"):
        Output(storage, str(old), KIND).check()
    assert content(old) == OLD
    Output(storage, str(old), KIND, overwrite=True).check()
    write(storage, old, overwrite=True)
    assert content(old) == NEW
    assert list(tmp_path.iterdir()) == [old]


@pytest.mark.parametrize(
    ("name", "told"),
    [("mine.txt", "is a box, but holds mine.txt, too"), ("box.json", r"no box.json in it")],
)
def test_a_folder_with_anything_of_the_user_is_never_replaced(storage, old, name, told):
    # One file more than ours, or ours without its marker.
    (old / name).write_text("precious") if name == "mine.txt" else (old / name).unlink()
    before = content(old)
    with pytest.raises(OutputExistsError, match=told):
        Output(storage, str(old), KIND, overwrite=True).check()
    with pytest.raises(OutputExistsError, match=told):
        write(storage, old, overwrite=True)
    assert content(old) == before


def test_a_file_is_never_replaced(storage, old):
    for name in ("box.json", "part-0"):
        with pytest.raises(OutputExistsError, match="is not a box"):
            Output(storage, f"{old}/{name}", KIND, overwrite=True).check()


@pytest.mark.parametrize("source", ["box", "box/", "box/part-0", "box/below/it", "link", "link/x"])
def test_an_output_that_is_or_contains_an_input_is_refused(storage, old, tmp_path, source):
    (tmp_path / "link").symlink_to(old)
    with pytest.raises(ConfigurationError, match=f"is or contains the input .*{source}"):
        Output(storage, str(old), KIND, overwrite=True).check(str(tmp_path), f"{tmp_path}/{source}")


def test_inputs_beside_and_above_are_fine(storage, target, tmp_path):
    Output(storage, str(target), KIND).check(str(tmp_path), f"{target}2", f"file://{tmp_path}/b")
    assert not list(tmp_path.iterdir())


def test_the_root_of_a_file_system_is_refused(storage):
    with pytest.raises(ConfigurationError, match="is or contains the input"):
        Output(storage, "file:/", KIND, overwrite=True).check("/tmp")
    with pytest.raises(OutputExistsError, match="file:/ exists and is not a box"):
        Output(storage, "file:/", KIND, overwrite=True).check()


def test_a_path_that_cannot_be_written_is_told_before_the_work(storage, tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(StorageError, match=f"{tmp_path}/file/below cannot be written: Cannot make"):
        Output(storage, f"{tmp_path}/file/below", KIND).check()


def test_an_error_of_the_work_leaves_the_old_and_nothing_new(storage, old, tmp_path):
    def work():
        with Output(storage, str(old), KIND, overwrite=True).writing() as folder:
            storage.write_text(f"{folder}/part-0", "half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as raised:
        work()
    assert not hasattr(raised.value, "__notes__")
    assert content(old) == OLD
    assert list(tmp_path.iterdir()) == [old]


@pytest.mark.parametrize(
    ("error", "end"),
    [
        (StorageError("refused"), "/box"),
        (KeyboardInterrupt(), "/box"),
        # The old one cannot be moved, so it stays.
        (StorageError("refused"), ".old"),
    ],
)
def test_if_the_new_cannot_get_the_name_the_old_has_it(storage, old, tmp_path, failing, error, end):
    tried = failing(error, end)
    with pytest.raises(type(error)) as raised:
        write(storage, old, overwrite=True)
    assert len(tried) == 1
    assert content(old) == OLD
    (note,) = raised.value.__notes__
    (kept,) = (path for path in tmp_path.iterdir() if path != old)
    assert note == f"the new box is complete in file:{kept}"
    assert content(kept) == NEW


def test_if_the_old_cannot_be_put_back_both_are_named(storage, old, tmp_path, failing):
    failing(StorageError("refused"), "/box", "/box")
    with pytest.raises(StorageError, match="refused") as raised:
        write(storage, old, overwrite=True)
    new, former = raised.value.__notes__
    assert not old.exists()
    assert content(Path(new.split("file:")[1])) == NEW
    assert content(Path(former.split("file:")[1].split(";")[0])) == OLD


def test_if_the_old_cannot_be_deleted_the_new_stands_and_the_rest_is_named(
    storage, old, tmp_path, monkeypatch
):
    monkeypatch.setattr(Storage, "delete", lambda *_: False)
    with pytest.raises(StorageError, match=r"box is complete, but .* Delete file:.*\.old"):
        write(storage, old, overwrite=True)
    assert content(old) == NEW


def test_what_appeared_meanwhile_is_not_replaced(storage, target, tmp_path):
    output = Output(storage, str(target), KIND)
    output.check()

    def work():
        with output.writing() as folder:
            storage.write_text(f"{folder}/box.json", "new")
            target.mkdir()
            (target / "box.json").write_text("of another job")

    with pytest.raises(OutputExistsError, match="holds a box already"):
        work()
    assert content(target) == {"box.json": "of another job"}
    assert len(list(tmp_path.iterdir())) == 2
