"""What reads bytes from outside: frames of peers, checkpoints, manifests, metadata, runs."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from functools import partial

import msgspec
import numpy as np

from data_prep.dataset.manifest import DataSet, build_manifest
from data_prep.dataset.settings import TilingSettings
from data_prep.geometry.grid import TileSpec
from data_prep.geometry.regions import read_zones
from data_prep.images.plane_selection import PlaneSelector
from data_prep.on_the_fly.column import Recipe, TilePlace, _place
from data_prep.splits import fingerprint_store
from distkeras_grid import array_tree
from distkeras_grid.checkpoints import (
    FORMAT,
    CheckpointManifest,
    Driver,
    DriverEpoch,
    IncompleteCheckpointError,
    piece_of,
)
from distkeras_grid.cli.retrain import parse_record
from distkeras_grid.dataset.manifest import TILED, ImageRecord, decode_manifest
from distkeras_grid.errors import (
    UNREADABLE,
    ConfigurationError,
    DataError,
    RemoteProtocolError,
    SandboxError,
    SchemaError,
)
from distkeras_grid.feeding.schema import Field
from distkeras_grid.history import History
from distkeras_grid.model_parallel.wire import ArrayChannel
from distkeras_grid.parameter_server import frames
from distkeras_grid.parameter_server.checkpoint_state import repartition
from distkeras_grid.parameter_server.messages import (
    TRANSITIONS,
    BeginCheckpoint,
    Endpoint,
    FetchPart,
    Message,
    PayloadKind,
)
from distkeras_grid.parameter_server.server_core import ServerCore
from distkeras_grid.parameter_server.server_events import DRIVER, ReceivedMessage
from distkeras_grid.sandbox.cluster import SandboxState
from distkeras_grid.sandbox.configuration import Ports
from distkeras_grid.spec import RunSpec
from distkeras_grid.trainers.checkpoint_writer import SavedDriver
from distkeras_grid.worker.worker_state import WorkerState
from tests.byte_connection import ByteConnection
from tests.distkeras_grid.parameter_server import test_connection
from tests.fuzzing import Target
from tests.specs import make_spec
from tests.stream_pair import stream_pair

SIZE = 3
GENERATION = DriverEpoch(3, Driver("application_17_0001", attempt=2), "token")
SANDBOX = SandboxState(Ports(*range(20000, 20007)), 1, 1024)
FIELD = Field("image", (32, 32, 1), classes=("a",))


def _connection(state: str, side: Endpoint) -> ByteConnection:
    connection = ByteConnection(side, SIZE, state_size=20, worker_state_limit=16)
    connection.state = state
    connection.vector = np.zeros(SIZE, np.float32)
    connection.passes_files = True
    connection.share_memory(np.zeros(SIZE, np.float32), np.zeros(SIZE, np.float32))
    return connection


def frame_targets(examples: list[Message]) -> list[Target]:
    """Return a target for each state of the protocol: frames that are legal in it, changed."""
    found = []
    for state, legal in TRANSITIONS.items():
        seeds = []
        for message in examples:
            if type(message) in legal:
                sender = _connection(state, type(message).sender)
                seeds.append(test_connection.encoded(sender, message))
        if seeds:
            (sender_side,) = {kind.sender for kind in legal}
            (receiver,) = set(Endpoint) - {sender_side}
            read = partial(_receive, state, receiver)
            # The driver takes parts of checkpoints of any size from its own server.
            trusted = state == "fetching a part"
            errors = (RemoteProtocolError,)
            found.append(Target(f"frames: {state}", seeds, read, errors, trusted=trusted))
    return found


def _receive(state: str, side: Endpoint, data: bytes) -> object:
    return _connection(state, side).receive(data)


def field_targets(examples: list[Message]) -> list[Target]:
    """Return a target for each message: its fields, changed."""
    return [
        Target(
            f"fields: {type(message).__name__}",
            [frames.fields_of(message)],
            partial(_decode, type(message)),
            (RemoteProtocolError,),
            "msgpack",
        )
        for message in examples
    ]


def _decode(kind: type[Message], data: bytes) -> object:
    header = frames.FrameHeader(kind, len(data), 0, PayloadKind.NOTHING)
    return frames.decode_message(header, data)


def _devices(data: bytes) -> object:
    ours, theirs = stream_pair()
    with ArrayChannel(theirs) as channel:
        if data:
            ours.send([memoryview(data)], time.monotonic() + 1.0)
        ours.finish_sending()
        return channel.receive(1.0)


def _device_frames() -> list[bytes]:
    found = []
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    for name, values, arrays in (
        ("step", {}, []),
        ("failure", {"error": "OSError", "text": "no"}, []),
        ("forward", {"layer": "a", "number": 3}, [array, array.view(np.uint8)]),
    ):
        ours, theirs = stream_pair()
        with ArrayChannel(ours) as channel:
            channel.send(name, values, arrays)
            target = bytearray(4096)
            found.append(bytes(target[: theirs.receive_into(memoryview(target), 1.0)]))
    return found


def _manifest() -> bytes:
    settings = TilingSettings("in", "out", TileSpec(32, angles=[0]))
    entries = [
        ImageRecord(
            "a/0.png", TILED, 4, sha256="a" * 64, label="a", split="train", shard=0, update=0
        ),
        ImageRecord(
            "a/1.png",
            TILED,
            4,
            sha256="b" * 64,
            label="a",
            split="test",
            shard=0,
            by_hand=("label",),
        ),
    ]
    built = build_manifest(settings, FIELD, entries, {"numpy": "2.0"})
    return json.dumps({**built, "last_shard": 0, "last_update": 0, "shards": ["shard=0"]}).encode()


def _text(read: Callable[[str], object]) -> Callable[[bytes], object]:
    """Read what a file contains: bytes that are no UTF-8 are refused before."""

    def decoded(data: bytes) -> object:
        try:
            text = data.decode()
        except UnicodeDecodeError:
            return None
        return read(text)

    return decoded


#: A rule that keeps vectors for each worker.
SPEC = make_spec("energy_matching", trainable_size=SIZE, workers=2)


def _saved_server() -> bytes:
    core = ServerCore(SPEC, np.ones(SIZE, np.float32))
    core.handle(ReceivedMessage(DRIVER, BeginCheckpoint(at_once=True)), 0.0)
    (part,) = core.handle(ReceivedMessage(DRIVER, FetchPart(1, 0)), 0.0)
    return array_tree.pack(part.tree).tobytes()


def stored_targets() -> list[Target]:
    """Return what is read from storage."""
    tree = {"seats": [{"rows": 7, "big": 2**100}], "center": np.ones(2, np.float32), "x": None}
    checkpoint = CheckpointManifest(
        FORMAT,
        3,
        "run",
        1.5,
        4,
        5,
        6,
        {"a": {"b": [1, 2]}},
        True,
        (piece_of("server.tree", b"abc"),),
    )
    manifest = _manifest()
    run_history = "".join(History({"trainer": "DOWNPOUR"}).lines()).encode()
    geojson = json.dumps(
        {
            "features": [
                {
                    "properties": {"file": "a.png", "kind": "exclude"},
                    "geometry": {
                        "type": "Polygon",
                        "coordinates": [[[0, 0], [5, 0], [5, 5], [0, 0]]],
                    },
                }
            ]
        }
    ).encode()
    place = msgspec.json.encode(TilePlace("/a.png", 0.0, 0, 0))
    return [
        Target(
            "packed trees",
            [array_tree.pack(tree).tobytes(), array_tree.pack({}).tobytes()],
            lambda data: array_tree.unpack(np.frombuffer(data, np.uint8)),
            (DataError,),
        ),
        Target(
            "servers in checkpoints",
            [_saved_server()],
            lambda data: ServerCore.resumed(SPEC, [np.frombuffer(data, np.uint8)]),
            (DataError,),
            "tree",
        ),
        Target(
            "servers for other workers",
            [_saved_server()],
            lambda data: repartition(np.frombuffer(data, np.uint8), 3),
            (DataError,),
            "tree",
        ),
        Target(
            "drivers in checkpoints",
            [
                array_tree.pack(
                    {"observer": {"rate": 0.5, "callbacks": []}, "resumed": []}
                ).tobytes()
            ],
            SavedDriver.from_bytes,
            (DataError,),
            "tree",
        ),
        Target(
            "workers in checkpoints",
            [WorkerState(np.ones(2, np.float32), 3, None, {"a": np.ones(1)}).to_bytes().tobytes()],
            lambda data: WorkerState.from_bytes(np.frombuffer(data, np.uint8)),
            (DataError,),
            "tree",
        ),
        Target(
            "manifests of checkpoints",
            [checkpoint.to_bytes()],
            CheckpointManifest.from_bytes,
            (IncompleteCheckpointError, ConfigurationError),
            "json",
        ),
        Target(
            "runs",
            [json.dumps(make_spec(name).to_json()).encode() for name in ("downpour", "aeasgd")],
            lambda data: RunSpec.from_json(json.loads(data)),
            (ConfigurationError, *UNREADABLE),
            "json",
        ),
        Target(
            "histories",
            [run_history],
            _text(lambda text: History.from_lines(text.splitlines())),
            (DataError,),
        ),
        Target("manifests", [manifest], _text(DataSet.from_text), (SchemaError,), "json"),
        Target(
            "tables",
            [manifest],
            _text(lambda text: decode_manifest(text, "/tiles")),
            (SchemaError,),
            "json",
        ),
        Target(
            "metadata of columns",
            [json.dumps(FIELD.to_metadata()).encode()],
            _metadata,
            (SchemaError,),
            "json",
        ),
        Target(
            "fingerprints",
            [fingerprint_store.pack({"a" * 64: b"abc", "b" * 64: b""})],
            lambda data: fingerprint_store.unpack(data, "file"),
            (DataError,),
            "msgpack",
        ),
        Target("generations", [GENERATION.to_bytes()], DriverEpoch.from_bytes, (), "json"),
        Target(
            "records of runs",
            [b'{"data_version": {"number": 3, "hash": "aa"}}'],
            _text(lambda text: parse_record(text, "run.json")),
            (SchemaError,),
            "json",
        ),
        Target("sandboxes", [SANDBOX.to_json().encode()], _text(_sandbox), (SandboxError,), "json"),
        Target(
            "recipes",
            [Recipe("cubic", "drop", PlaneSelector()).to_text().encode()],
            _text(Recipe.from_text),
            (SchemaError,),
            "json",
        ),
        Target(
            "places of tiles",
            [place],
            lambda data: _place(memoryview(data), FIELD, 0),
            (SchemaError,),
            "json",
        ),
        Target(
            "zones",
            [geojson],
            _text(lambda text: read_zones(text, "zones.geojson")),
            (SchemaError,),
            "json",
        ),
        Target("frames of devices", _device_frames(), _devices, (RemoteProtocolError, OSError)),
    ]


def _sandbox(text: str) -> object:
    return SandboxState.from_json(text).names


def _metadata(data: bytes) -> object:
    """Spark itself parses the JSON; what is read is a dict."""
    try:
        content = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return Field.from_metadata("image", content) if isinstance(content, dict) else None


def all_targets() -> list[Target]:
    """Return every target."""
    examples = [parameter.values[0] for parameter in test_connection.examples()]
    return [*frame_targets(examples), *field_targets(examples), *stored_targets()]
