"""Devices in threads of this process, behind real sockets, and models of towers."""

from __future__ import annotations

import threading
from contextlib import contextmanager

import numpy as np
import pytest

from distkeras_grid.errors import GridError, LocalDiskError, ServerUnreachableError
from distkeras_grid.model_parallel.device import ConvolutionModule
from distkeras_grid.model_parallel.device_group import DeviceGroup
from distkeras_grid.model_parallel.devices import Devices
from distkeras_grid.model_parallel.rpc import serve
from distkeras_grid.model_parallel.time_model import LayerPlan, SplitPlan
from distkeras_grid.model_parallel.wire import ArrayChannel
from distkeras_grid.spec import LimitsSpec
from tests.stream_pair import stream_pair

#: Enough for every answer of a part that lives.
PATIENT = LimitsSpec(start_timeout=30.0, round_timeout=30.0)


@contextmanager
def group_of(modules, limits=PATIENT, raises=()):
    """The devices of a run in threads, all of which are there; some end with errors (`raises`)."""
    group, threads, errors = DeviceGroup(1 + len(modules), limits), [], {}
    group.left = {}

    def work(number, channel, module):
        try:
            serve(channel, lambda: module)
        except ServerUnreachableError as error:
            # The master has failed, or has dropped it.
            group.left[number] = str(error)
        except (OSError, ValueError, ArithmeticError, GridError) as error:
            errors[number] = type(error)

    try:
        with group:
            for number, module in enumerate(modules, start=1):
                ours, theirs = (ArrayChannel(stream) for stream in stream_pair())
                threads.append(threading.Thread(target=work, args=(number, theirs, module)))
                threads[-1].start()
                group.admit(number, ours)
            group.wait_for_all()
            yield group
    finally:
        for thread in threads:
            thread.join(10)
            assert not thread.is_alive()
    assert errors == dict(raises)


class Mortal:
    """A module whose device is lost at its n-th call from when `left` was set.

    If it is `silent`, it keeps the connection, and answers nothing more until `over`.
    """

    def __init__(self, module):
        self.module, self.left, self.silent = module, None, False
        self.over = threading.Event()
        self.CALLS = module.CALLS

    def __getattr__(self, name):
        method = getattr(self.module, name)

        def call(*arrays, **values):
            if self.left is not None:
                self.left -= 1
                if self.left < 0 and self.silent:
                    self.over.wait(60)
                elif self.left < 0:
                    raise LocalDiskError("a test")
            return method(*arrays, **values)

        return call


@contextmanager
def devices_of(layers, count, batch=8, which="all", limits=PATIENT):
    """The devices of a run with these layers."""
    with group_of([ConvolutionModule() for _ in range(1, count)], limits) as group:
        group.each("open", layers=[layer.to_json() for layer in layers])
        devices = Devices(layers, group, batch, which)
        devices.group = group
        yield devices


def plan_of(**shares):
    """A plan with these shares, by layer."""
    return SplitPlan(
        layers=tuple(
            LayerPlan(layer=name, shares=tuple(each), whole=1.0, divided=1.0, moved=0)
            for name, each in shares.items()
        )
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


def check_trained_as_fit(spark, kind, *models, **settings):
    """Train for two epochs by Spark's tasks, and by ``fit`` on one process: the same comes out."""
    import keras

    def optimizer():
        return keras.optimizers.SGD(0.1, momentum=0.9)

    terms = {"loss": "sparse_categorical_crossentropy", "metrics": ["accuracy"]}
    settings |= {"batch_size": 16, "num_epoch": 2, "features_col": "x", "progress": False}
    trainer = kind(*models, optimizer(), **terms, **settings)
    expected = keras.models.clone_model(trainer.keras_model)
    expected.set_weights(trainer.keras_model.get_weights())
    expected.compile(optimizer(), **terms)
    random = np.random.default_rng(2)
    x, y = random.random((90, 5), np.float32), np.arange(90) % 3
    history = expected.fit(x, y, batch_size=16, epochs=2, shuffle=False, verbose=0)
    table = [(row.tolist(), int(label)) for row, label in zip(x, y, strict=True)]
    rows = spark.createDataFrame(table, "x array<float>, label int").coalesce(1)
    model = trainer.train(rows, shuffle=False, validation_data=rows, seed=1)
    for one, other in zip(expected.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)
    assert trainer.history.history["accuracy"] == pytest.approx(history.history["accuracy"])
    assert any("moved" in line for line in trainer.run["devices"])
    return trainer
