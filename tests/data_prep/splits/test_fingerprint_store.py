import msgspec
import pytest

from data_prep.splits import fingerprint_store
from data_prep.splits.fingerprint_store import (
    FOLDER,
    load_fingerprints,
    pack,
    save_fingerprints,
    unpack,
)
from distkeras_grid.errors import DataError
from tests.interleaving import at_once

PRINTS = {f"{i:064x}": bytes([i]) * (i + 1) for i in range(7)}


def test_what_several_nights_saved_is_read_as_one(monkeypatch):
    monkeypatch.setattr(fingerprint_store, "PRINTS_OF_A_FILE", 2)
    disk = {}
    files = at_once(disk)
    assert load_fingerprints(files, "tiles") == {}
    some = dict(list(PRINTS.items())[:5])
    save_fingerprints(files, "tiles", some)
    save_fingerprints(files, "tiles", PRINTS)
    save_fingerprints(files, "tiles", {})
    assert len(disk) == 3 + 4
    assert all(name.startswith(f"tiles/{FOLDER}/") for name in disk)
    assert load_fingerprints(files, "tiles") == PRINTS


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"PK",
        pack(PRINTS)[:-30],
        pack(PRINTS) + b"x",
        pack({"../../home": b"x"}),
        pack({"A" * 64: b"x"}),
        msgspec.msgpack.encode([b"x"]),
        msgspec.msgpack.encode({"a" * 64: "text"}),
        msgspec.msgpack.encode({"a" * 64: [1.5]}),
    ],
)
def test_what_no_run_writes_is_refused_by_name(content):
    with pytest.raises(DataError, match=r"x\.msgpack"):
        unpack(content, "x.msgpack")
    assert unpack(pack(PRINTS), "x.msgpack") == PRINTS
