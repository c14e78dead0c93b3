"""Deep gradient compression: what is sent, what is kept, and that nothing is lost between.

There is no C6, a saved state: what a worker holds back is not saved, and ends with its attempt.
"""

import numpy as np
import pytest

from distkeras_grid.parameter_server.compression import Sparse
from distkeras_grid.rules import Accumulator, DeepGradientCompression
from distkeras_grid.rules.gradient_compression import FEWEST, MOST, number_sent
from distkeras_grid.weights import Variable, WeightLayout

LAYOUT = WeightLayout(
    (Variable("a", (8, 10)), Variable("bias", (10,)), Variable("b", (10, 3))),
    (Variable("s", (4,)),),
)
KERNELS = (slice(0, 80), slice(90, 120))
BIAS, STATISTICS = slice(80, 90), slice(120, 124)
STEPS = 12


def accumulator(**changes):
    settings = {"sparsity": 0.9, "momentum": 0.5, "warm_up_epochs": 0, **changes}
    return Accumulator(DeepGradientCompression(**settings), LAYOUT)


def gradients(seed=0):
    """Small whole numbers, of which float32 adds and halves many without rounding."""
    random = np.random.default_rng(seed)
    return random.integers(-64, 65, (STEPS, LAYOUT.size)).astype(np.float32)


def sent(compressor, rows, epoch=1):
    """What is sent of each commit."""
    rows = rows.copy()
    for row in rows:
        compressor.compress(row, epoch)
    return rows


def velocities(rows, momentum):
    """``u`` of every step, where nothing is masked."""
    found, u = [], np.zeros(rows.shape[1])
    for row in rows.astype(np.float64):
        u = momentum * u + row
        found.append(u)
    return np.array(found)


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_C1_with_nothing_held_back_it_is_sgd_with_momentum(momentum):
    """Masking would make it SGD without momentum, so it is left out here."""
    rows = gradients()
    found = sent(accumulator(sparsity=0.0, momentum=momentum), rows)
    expected = velocities(rows, momentum)
    np.testing.assert_array_equal(found[:, :120], expected[:, :120])


@pytest.mark.parametrize("sparsity", [0.0, 0.5, 0.9, 0.99])
def test_C2_what_was_sent_and_what_is_kept_is_what_came(sparsity):
    rows, keeping = gradients(), accumulator(sparsity=sparsity, momentum=0.0)
    found = sent(keeping, rows)
    np.testing.assert_array_equal(
        found[:, :120].sum(axis=0) + keeping.residual, rows[:, :120].sum(axis=0)
    )


@pytest.mark.parametrize("sparsity", [0.0, 0.5, 0.9])
def test_C2_with_momentum_it_is_the_sum_of_the_velocities(sparsity):
    rows, keeping = gradients(), accumulator(sparsity=sparsity)
    came, out = np.zeros(120), np.zeros(120)
    for row in rows:
        came += keeping.velocity * 0.5 + row[:120]
        keeping.compress(row, 1)
        out += row[:120]
    np.testing.assert_array_equal(out + keeping.residual, came)


@pytest.mark.parametrize("epoch", [1, 2, 3])
def test_C3_so_many_numbers_of_each_tensor_are_sent(epoch):
    keeping = accumulator(sparsity=0.9, warm_up_epochs=1)
    found = sent(keeping, gradients() + 0.5, epoch)
    for kernel in KERNELS:
        size = kernel.stop - kernel.start
        wanted = number_sent(size, 0.75 if epoch == 1 else 0.9)
        assert set(np.count_nonzero(found[:, kernel], axis=1)) == {wanted}


@pytest.mark.parametrize("sparsity", [0.75, 0.999])
def test_C3_of_a_large_tensor_about_so_many(sparsity):
    layout = WeightLayout((Variable("kernel", (1000, 300)),))
    settings = DeepGradientCompression(sparsity, warm_up_epochs=0)
    row = np.random.default_rng(1).normal(size=layout.size).astype(np.float32)
    came = row.copy()
    Accumulator(settings, layout).compress(row, 1)
    share = np.count_nonzero(row) / number_sent(layout.size, sparsity)
    assert FEWEST <= share <= MOST
    # A sample has found them, and the 3 that it has of 300 were not enough.
    assert (share == 1) == (sparsity == 0.999)
    # They are the largest ones.
    assert np.abs(came[row != 0]).min() >= np.abs(came[row == 0]).max()


def test_C4_what_was_sent_is_neither_kept_nor_has_it_momentum():
    keeping = accumulator()
    (found,) = sent(keeping, gradients()[:1] + 0.5)
    for kernel in KERNELS:
        places = np.flatnonzero(found[kernel])
        assert not keeping.residual[kernel][places].any()
        assert not keeping.velocity[kernel][places].any()
        assert np.count_nonzero(keeping.residual[kernel]) == len(found[kernel]) - len(places)


def test_biases_go_whole_with_their_momentum_and_statistics_as_they_are():
    rows = gradients()
    found = sent(accumulator(), rows)
    np.testing.assert_array_equal(found[:, BIAS], velocities(rows, 0.5)[:, BIAS])
    np.testing.assert_array_equal(found[:, STATISTICS], rows[:, STATISTICS])


@pytest.mark.parametrize("count", [0, 1, 40, 62, 124])
def test_C5_nothing_is_lost_on_the_way(count):
    random = np.random.default_rng(count)
    vector = np.zeros(LAYOUT.size, np.float32)
    places = random.choice(LAYOUT.size, count, replace=False)
    # Any bits: infinities, NaN of all kinds, numbers below the smallest normal one.
    vector.view(np.uint32)[places] = random.integers(1, 2**32, count, np.uint64).astype(np.uint32)
    vector[places[:2]] = -0.0
    sender, receiver = Sparse(LAYOUT.size), Sparse(LAYOUT.size)
    data, out = sender.pack(vector), np.full(LAYOUT.size, 7, np.float32)
    assert receiver.fits(len(data))
    receiver.place(len(data), out)[:] = data
    receiver.unpack(out)
    np.testing.assert_array_equal(out.view(np.uint32), vector.view(np.uint32))
