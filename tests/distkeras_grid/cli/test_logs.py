"""Which logs are chosen, how they are shown, and where they are stored."""

from __future__ import annotations

import pytest

from distkeras_grid.cli.logs import build_parser, filter_containers, show, store
from distkeras_grid.errors import ClusterError, StorageError
from distkeras_grid.submission.container_logs import LogFile

DRIVER, EXECUTOR = "container_17_0003_01_000001", "container_17_0003_01_000002"


class Source:
    """Logs by container and name."""

    def __init__(self, logs):
        self.logs = logs

    def files(self):
        return [LogFile(*place, len(text)) for place, text in self.logs.items()]

    def read(self, file, last=None):
        text = self.logs[file.container, file.node, file.name]
        yield text if last is None else text[-last:]


SOURCE = Source(
    {
        (DRIVER, "a:1", "stdout"): b"one\ntwo\nthree\n",
        (DRIVER, "a:1", "stderr"): b"",
        (DRIVER, "a:1", "prelaunch.out"): b"begun",
        (EXECUTOR, "b:1", "stderr"): b"lost\n",
    }
)


@pytest.mark.parametrize(
    ("flags", "found"),
    [
        ([], [(DRIVER, "stdout"), (EXECUTOR, "stderr")]),
        (["--driver"], [(DRIVER, "stdout")]),
        (["--container", "000002"], [(EXECUTOR, "stderr")]),
        (["--file", "stderr"], [(DRIVER, "stderr"), (EXECUTOR, "stderr")]),
        (
            ["--list", "--driver"],
            [(DRIVER, name) for name in ("stdout", "stderr", "prelaunch.out")],
        ),
    ],
)
def test_the_flags_choose_files(flags, found):
    flags = build_parser().parse_args(["application_17_0003", *flags])
    assert [
        (file.container, file.name) for file in filter_containers(SOURCE.files(), flags)
    ] == found


@pytest.mark.parametrize(("lines", "shown"), [(0, ["one", "two", "three"]), (2, ["two", "three"])])
def test_the_last_lines_are_shown_below_a_heading(lines, shown, capsys):
    show(SOURCE, SOURCE.files()[:1], lines)
    _, heading, *rest = capsys.readouterr().out.splitlines()
    assert DRIVER in heading
    assert rest == shown


def test_whole_files_are_stored_by_container(tmp_path):
    store(SOURCE, SOURCE.files(), tmp_path / "logs")
    assert (tmp_path / "logs" / DRIVER / "stdout").read_bytes() == b"one\ntwo\nthree\n"
    assert (tmp_path / "logs" / EXECUTOR / "stderr").read_bytes() == b"lost\n"


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="Not a directory"):
        store(SOURCE, SOURCE.files(), tmp_path / "file" / "logs")


@pytest.mark.parametrize(
    "place", [("..", "stdout"), (DRIVER, "../../stdout"), ("", "a"), ("a", ".")]
)
def test_no_name_leads_out_of_the_folder(place, tmp_path):
    container, name = place
    source = Source({(container, "a:1", name): b"text"})
    with pytest.raises(ClusterError):
        store(source, source.files(), tmp_path / "logs" / "deeper")
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
