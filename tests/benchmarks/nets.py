"""The two nets of the benchmark on Fashion-MNIST, and how each is best run on one core."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.benchmarks.studies import nets

CLASSES = 10


@dataclass(frozen=True)
class Net:
    """A model and what belongs to it."""

    title: str  # For the tables
    shape: tuple[int, ...]  # Shape of one image
    # XLA does well with dense layers, and on a CPU very badly with convolutions in a loop.
    jit: bool
    net: nets.Net

    def build(self, seed: int, steps_per_execution: int = 1) -> Any:
        """Return the compiled model with the initial weights of a seed."""
        return self.net.build(self.shape, CLASSES, seed, steps_per_execution=steps_per_execution)


NETS = {
    "mlp": Net("MLP 784-512-256-10", (784,), True, nets.NETS["mlp"]),
    "cnn": Net("CNN conv32-pool-conv64-pool-dense128-10", (28, 28, 1), False, nets.NETS["cnn"]),
}
