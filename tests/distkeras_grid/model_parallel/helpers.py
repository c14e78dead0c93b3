"""Devices in threads of this process, behind real lines in memory, and models of towers."""

from __future__ import annotations

import threading
from contextlib import contextmanager

import numpy as np
import pytest

from distkeras_grid.model_parallel.device import ConvolutionWorker, serve
from distkeras_grid.model_parallel.devices import Devices
from distkeras_grid.model_parallel.messages import VOCABULARY
from distkeras_grid.model_parallel.time_model import LayerPlan, SplitPlan
from distkeras_grid.parameter_server.array_channel import ArrayChannel
from distkeras_grid.spec import LimitsSpec
from tests.memory_streams import memory_pair

#: Enough for every answer of a part that lives.
PATIENT = LimitsSpec(start_timeout=30.0, round_timeout=30.0)


def proven_pair():
    """Both ends of a line whose handshake is over."""
    channels = [ArrayChannel(stream, VOCABULARY) for stream in memory_pair()]
    for channel in channels:
        channel.proven = True
    return channels


def connect(devices, number, computer, before=None, attempt=0):
    """Start a device in a thread, which is returned."""
    ours, theirs = proven_pair()
    if before is not None:
        before(theirs)
    thread = threading.Thread(target=serve, args=(theirs, computer), daemon=True)
    thread.start()
    devices.join(number, ours, attempt)
    return thread


def again(members, number, computer, attempt=0):
    """Connect a device that was there already, which raises what turns it away."""
    ours, theirs = proven_pair()
    thread = threading.Thread(target=serve, args=(theirs, computer), daemon=True)
    thread.start()
    try:
        members.join(number, ours, attempt)
    finally:
        ours.close()
        thread.join(10)


class Dies:
    """A device that loses its connection at its n-th message from when `left` was set.

    If it is `silent`, it keeps the connection, and answers nothing more.
    """

    def __init__(self, computer, left=None):
        self.computer, self.left, self.silent = computer, left, False

    def answer(self, message, arrays, duplex):
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                if not self.silent:
                    duplex.close()
                return
        self.computer.answer(message, arrays, duplex)


@contextmanager
def devices_of(layers, count, batch=8, which="all", before=None, **settings):
    """The devices of a run, all of which are there."""
    told = []
    devices = Devices(layers, count, batch, which, told.append, **settings)
    devices.told = told
    devices.computers = [ConvolutionWorker(layers) for _ in range(1, count)]
    devices.threads = [
        connect(devices, n, computer, (before or {}).get(n))
        for n, computer in enumerate(devices.computers, start=1)
    ]
    assert devices.wait_for_all(10) == count
    try:
        yield devices
    finally:
        devices.close()
        for thread in devices.threads:
            thread.join(10)
            assert not thread.is_alive()


def plan_of(**shares):
    """A plan with these shares, by layer."""
    return SplitPlan(
        layers=tuple(
            LayerPlan(layer=name, shares=tuple(each), whole=1.0, divided=1.0, moved=0)
            for name, each in shares.items()
        )
    )


def planning(**shares):
    """A stand-in for `plan_layers` to which a layer takes 0.5 s whole and 0.25 s divided."""
    layers = tuple(
        LayerPlan(layer=name, shares=each, whole=0.5, divided=0.25, moved=1)
        for name, each in shares.items()
    )
    return lambda *_, rest, baseline_seconds, **__: SplitPlan(
        layers=layers, rest=rest, baseline_seconds=baseline_seconds
    )


NAMES = ("left", "middle", "right")


def tower(name, width=6):
    import keras

    layers = [
        keras.Input((5,)),
        keras.layers.Dense(width, activation="relu", use_bias=False),
        keras.layers.BatchNormalization(),
        keras.layers.Dropout(0.2, seed=width),
        keras.layers.Dense(4, name=f"{name}_out"),
    ]
    return keras.Sequential(layers, name=name)


def head(inputs=12, several=0):
    import keras

    if several:
        given = [keras.Input((4,)) for _ in range(several)]
        outputs = keras.layers.Dense(3, activation="softmax")(keras.layers.Add()(given))
        return keras.Model(given, outputs, name="head")
    layers = [keras.Input((inputs,)), keras.layers.Dense(3, activation="softmax")]
    return keras.Sequential(layers, name="head")


def wide(optimizer="adam", count=3, several=False):
    import keras

    from distkeras_grid.model_parallel.tower_model import stack

    keras.utils.set_random_seed(3)
    names = NAMES[:count]
    towers = [tower(name, 5 + n) for n, name in enumerate(names)]
    model = stack(towers, head(4 * count, several=count if several else 0))
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model, names


def check_trained_as_fit(spark, trainer, expected):
    """Train for two epochs by Spark's tasks, and by ``fit`` on one process: the same comes out."""
    random = np.random.default_rng(2)
    x, y = random.random((90, 5), np.float32), np.arange(90) % 3
    history = expected.fit(x, y, batch_size=16, epochs=2, shuffle=False, verbose=0)
    table = [(row.tolist(), int(label)) for row, label in zip(x, y, strict=True)]
    rows = spark.createDataFrame(table, "x array<float>, label int").coalesce(1)
    model = trainer.train(rows, shuffle=False, validation_data=rows, seed=1)
    for one, other in zip(expected.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)
    assert trainer.history.history["accuracy"] == pytest.approx(history.history["accuracy"])
