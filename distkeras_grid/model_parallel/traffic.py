"""The bytes of a batch on the master's link and in each task, before a run: pure arithmetic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

#: How tasks share one model: `PlacedLayers`, `Towers` or `ConvolutionSplit`.
Kind = Literal["stages", "towers", "devices"]


@dataclass(frozen=True)
class Traffic:
    """What tasks that share one model send each other.

    Parameters
    ----------
    kind : {"stages", "towers", "devices"}
        How they share it.
    tasks : int
        Number of tasks, the master included.
    weights : int
        Parameters of the model; of `devices` those of the divided layers.
    batch : int
        Rows of a batch.
    inputs, outputs : int
        Numbers of a row: of `stages` in the model's input and at each cut, of `towers` in the input
        and in the output of each, of `devices` in the inputs and the outputs of the divided layers.

    Examples
    --------
    >>> Traffic("towers", 3, 10**6, batch=32, inputs=100, outputs=10).batch_bytes
    30720
    """

    kind: Kind
    tasks: int
    weights: int
    batch: int
    inputs: int
    outputs: int

    @property
    def batch_bytes(self) -> int:
        """Bytes of a batch, both ways together."""
        others = self.tasks - 1
        if not others:
            return 0
        given, made = 4 * self.batch * self.inputs, 4 * self.batch * self.outputs
        if self.kind == "stages":
            # All cuts but the last lead by way of the master, whose link sees their bytes twice.
            return given + 2 * made * (2 * others - 1)
        if self.kind == "towers":
            return others * (given + 2 * made)
        return others * 2 * given + 2 * (made + 4 * self.weights) * others // self.tasks

    @property
    def task_bytes(self) -> int:
        """Bytes of the arrays of a batch that a task holds at most, of those received and sent.

        Of a device they are input, output and the gradients of both, of all divided layers; the
        master has them whole. Of towers they are the master's, with the outputs of all. Of stages
        they are input, output and their gradients, with the model's input as the first one's. What
        a tower or a stage keeps inside of it does not follow from these numbers.
        """
        given, made = 4 * self.batch * self.inputs, 4 * self.batch * self.outputs
        if self.kind == "stages":
            return given + 4 * made
        if self.kind == "towers":
            return given + 2 * self.tasks * made
        return 2 * given + 2 * made

    def sentence(self, available: float) -> str:
        """Return the need in words.

        Parameters
        ----------
        available : float
            Speed of the link in one direction [bytes/s].

        Examples
        --------
        >>> print(Traffic("stages", 4, 25_000_000, 64, 3072, 4096).sentence(1.25e9))
        4 stages: 11.3 MB a batch of 64 rows pass the master's link, 0.009 s at 1.25 GB/s; batches \
that take as long or longer need no more than 1.25 GB/s
        """
        seconds = self.batch_bytes / available
        speed = f"{available / 1e9:.3g} GB/s"
        return (
            f"{self.tasks} {self.kind}: {self.batch_bytes / 1e6:.3g} MB a batch of {self.batch} "
            f"rows pass the master's link, {seconds:.2g} s at {speed}; batches that take as long "
            f"or longer need no more than {speed}"
        )
