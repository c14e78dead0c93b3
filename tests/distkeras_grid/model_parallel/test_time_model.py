"""When dividing a layer pays, by the equation and its break-even point."""

import math
import re

import numpy as np
import pytest

from distkeras_grid.model_parallel.geometry import Convolution
from distkeras_grid.model_parallel.time_model import (
    LayerPlan,
    LayerTimes,
    NetworkLink,
    SplitPlan,
    UnitTime,
    divided_seconds,
    moved_bytes,
    plan_layer,
    plan_layers,
)

FREE = NetworkLink(bandwidth=math.inf)
ETHERNET = NetworkLink(bandwidth=125e6)


def layer(name="c", inputs=500, channels=1500, size=16):
    return Convolution(
        name=name,
        input_shape=(size, size, inputs),
        kernel_size=(5, 5),
        channels=channels,
        strides=(1, 1),
        padding="same",
        input_gradient=inputs > 3,
    )


def pace(layer, batch, flops):
    """A device that makes so many floating-point operations a second, twice of them backward."""
    operations = operations_of(layer, batch)
    return UnitTime(forward=operations / flops, backward=2 * operations / flops)


def operations_of(layer, batch):
    """The floating-point operations of the forward pass of a channel."""
    height, width, _ = layer.output_shape
    return 2 * batch * height * width * math.prod(layer.kernel_shape(1))


def times(*paces, **others):
    return LayerTimes(paces=paces, **others)


def test_a_request_and_its_answer_take_two_ways_and_their_bytes():
    link = NetworkLink(bandwidth=100.0, latency=0.5)
    assert (link.seconds(200), link.seconds(0)) == (2 * 0.5 + 2.0, 0.0)


def test_equal_devices_and_a_free_link_divide_the_time():
    c = layer()
    plan = plan_layer(c, 64, times(*[pace(c, 64, 1e10)] * 4), FREE)
    assert plan.shares == (375,) * 4
    assert plan.whole / plan.divided == pytest.approx(4)


def test_a_layer_of_three_input_channels_never_pays_on_ethernet():
    """Its break-even is at 4.7 GFLOP/s without the broadcast of the input; cores make more."""
    first = layer(inputs=3, channels=500, size=32)
    plan = plan_layer(first, 64, times(*[pace(first, 64, 2e10)] * 4), ETHERNET)
    assert not plan.is_divided
    assert plan.divided == pytest.approx(plan.whole)


def test_a_layer_of_many_input_channels_pays_for_cpus_and_not_for_gpus():
    c = layer()
    cpus = plan_layer(c, 64, times(*[pace(c, 64, 5e10)] * 4), ETHERNET)
    assert cpus.is_divided
    assert cpus.whole / cpus.divided > 1.5
    assert not plan_layer(c, 64, times(*[pace(c, 64, 1e13)] * 4), ETHERNET).is_divided


def test_the_bytes_are_those_of_the_equation():
    c, shares, batch = layer(), (500, 600, 400), 8
    x, w, y = 4 * batch * 256 * 500, 4 * 25 * 500 * 1000, 4 * batch * 256 * 1000
    assert moved_bytes(c, batch, shares) == (2 * x + w + y, y + 2 * x + w)
    first = layer(inputs=3)
    assert moved_bytes(first, batch, (0, 1500))[1] == 4 * 75 * 1500 + 4 * batch * 256 * 1500
    assert moved_bytes(c, batch, (1500, 0, 0)) == (0, 0)


def test_shares_follow_the_speeds_and_a_device_that_costs_more_than_it_gives_gets_none():
    c = layer(channels=100)
    fast, slow = pace(c, 64, 3e10), pace(c, 64, 1e10)
    assert plan_layer(c, 64, times(slow, fast), FREE).shares == (25, 75)
    # The slow one would take 1/61 of the layer, and the link needs longer for its input.
    measured, link = times(fast, fast, pace(c, 64, 1e9)), NetworkLink(bandwidth=5e8)
    assert plan_layer(c, 64, measured, link).shares == (50, 50, 0)
    assert plan_layer(c, 64, measured, link, always=True).shares[2] > 0


def test_the_choice_is_the_best_of_its_options():
    generator = np.random.default_rng(3)
    for _ in range(100):
        c = layer(inputs=int(generator.integers(1, 300)), channels=int(generator.integers(1, 300)))
        paces = [pace(c, 16, 10 ** generator.uniform(9, 12)) for _ in range(4)]
        link = NetworkLink(bandwidth=10 ** generator.uniform(7, 10), latency=1e-4)
        measured = times(*paces)
        chosen, everyone = (plan_layer(c, 16, measured, link, always=a) for a in (False, True))
        assert chosen.divided <= min(chosen.whole, everyone.divided) * (1 + 1e-12)
        for plan in (chosen, everyone):
            if plan.is_divided:
                again = divided_seconds(c, 16, plan.shares, paces, link)
                assert plan.divided == pytest.approx(again)


def test_an_overhead_counts_for_divided_layers_only():
    c = layer()
    paces = [pace(c, 64, 1e10)] * 2
    plain = plan_layer(c, 64, times(*paces), FREE)
    half = plain.whole / 2
    slightly = plan_layer(c, 64, times(*paces, overhead=0.5 * half), FREE)
    assert slightly.divided == pytest.approx(1.5 * half)
    assert slightly.shares == plain.shares
    much = plan_layer(c, 64, times(*paces, overhead=1.5 * half), FREE)
    assert not much.is_divided
    assert much.divided == pytest.approx(much.whole)


def test_a_whole_layer_takes_what_the_master_takes_while_the_others_wait():
    c = layer()
    a, faster = pace(c, 64, 1e10), pace(c, 64, 3e10)
    plan = plan_layer(c, 64, times(a, a, alone=faster), FREE)
    assert not plan.is_divided
    assert plan.whole == pytest.approx(1500 * faster.both)


def test_a_device_without_a_measured_pace_gets_nothing():
    c = layer()
    a = pace(c, 64, 1e10)
    assert plan_layer(c, 64, times(a, None, a), FREE).shares == (750, 0, 750)


def test_all_layers_are_divided_in_any_case_if_they_are_asked_for():
    layers = [layer("a", 3, 500, 32), layer("b")]
    measured = {c.name: times(*[pace(c, 64, 1e13)] * 2) for c in layers}
    assert plan_layers(layers, 64, measured, ETHERNET).shares == {}
    assert plan_layers(layers, 64, measured, ETHERNET, which="all").shares == {
        "a": (250, 250),
        "b": (750, 750),
    }


@pytest.mark.parametrize(
    ("which", "divided", "divides", "says"),
    [
        ("auto", 0.3, True, "pays: 0.300 s a batch instead of 0.400 s"),
        ("auto", 0.4, False, "does not pay: 0.400 s.*All stay whole"),
        ("all", 0.5, True, "does not pay: 0.500 s.*because of layers"),
    ],
)
def test_layers_are_divided_only_if_a_batch_is_faster_or_if_all_are_asked_for(
    which, divided, divides, says
):
    part = LayerPlan(layer="a", shares=(2, 2), whole=1.0, divided=0.6, moved=10)
    plan = SplitPlan(layers=(part,)).decided(which, whole=0.4, divided=divided)
    assert plan.shares == ({"a": (2, 2)} if divides else {})
    assert plan.batch == (0.4, divided)
    assert re.search(says, plan.verdict())
    if not divides:
        assert plan.layers[0] == LayerPlan(
            layer="a", shares=(4, 0), whole=1.0, divided=1.0, moved=0
        )
