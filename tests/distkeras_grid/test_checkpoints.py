import msgspec
import pytest

from distkeras_grid.checkpoints import (
    FORMAT,
    CheckpointManifest,
    IncompleteCheckpointError,
    folder_name,
    numbers_of,
    piece_of,
)
from distkeras_grid.errors import ConfigurationError

DIGEST = "0" * 64


def manifest(**changes):
    fields = {
        **{"format": FORMAT, "number": 3, "run": "ADAG-1", "saved_at": 7.5, "version": 9},
        **{"samples": 90, "epochs": 1, "spec": {"a": [1]}, "xla": True},
        "pieces": (piece_of("server.tree", b"abc"), piece_of("seat-00000.tree", b"x")),
    }
    return CheckpointManifest(**{**fields, **changes})


def test_a_manifest_comes_back_as_it_was():
    assert CheckpointManifest.from_bytes(manifest().to_bytes()) == manifest()


@pytest.mark.parametrize("length", range(0, len(manifest().to_bytes()) - 2, 7))
def test_a_part_of_a_manifest_is_torn(length):
    with pytest.raises(IncompleteCheckpointError):
        CheckpointManifest.from_bytes(manifest().to_bytes()[:length])


@pytest.mark.parametrize(
    "changes",
    [
        {"number": -1},
        {"number": "3"},
        {"pieces": [{"name": "../x.tree", "bytes": 1, "sha256": DIGEST}]},
        {"pieces": [{"name": "a/b.tree", "bytes": 1, "sha256": DIGEST}]},
        {"pieces": [{"name": "a.tree", "bytes": -1, "sha256": DIGEST}]},
        {"pieces": [{"name": "a.tree", "bytes": 1, "sha256": "x" * 64}]},
        {"pieces": 2 * [{"name": "a.tree", "bytes": 1, "sha256": DIGEST}]},
        {"more": 1},
        {"xla": None},
    ],
)
def test_a_forged_manifest_is_refused(changes):
    told = {**msgspec.to_builtins(manifest()), **changes}
    with pytest.raises(IncompleteCheckpointError):
        CheckpointManifest.from_bytes(msgspec.json.encode(told))


def test_another_release_is_told_and_not_passed_over():
    told = {"format": FORMAT + 1, "what": "ever"}
    with pytest.raises(ConfigurationError):
        CheckpointManifest.from_bytes(msgspec.json.encode(told))


@pytest.mark.parametrize("content", [b"", b"ab", b"abd", b"abcd"])
def test_another_content_is_torn(content):
    piece = piece_of("server.tree", b"abc")
    piece.check(b"abc")
    with pytest.raises(IncompleteCheckpointError):
        piece.check(content)


def test_a_manifest_knows_its_pieces():
    found = manifest()
    assert found.piece("server.tree").bytes == 3
    assert [piece.bytes for piece in found.starting_with("seat-")] == [1]
    with pytest.raises(IncompleteCheckpointError):
        found.piece("driver.tree")


def test_what_is_no_checkpoint_has_no_number():
    names = [folder_name(9), folder_name(10), "checkpoint-1", "notes.txt", "_checkpoint-00000011"]
    assert numbers_of(names) == [10, 9]
