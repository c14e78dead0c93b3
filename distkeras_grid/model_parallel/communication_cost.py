"""The bytes on the master's link and in each task, before a run: pure arithmetic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

#: Batches of a window, unless the user or a short epoch says otherwise.
WINDOW = 16
#: How tasks share one model: `PlacedLayers`, `Towers` or `ConvolutionSplit`.
Kind = Literal["stages", "towers", "devices"]


@dataclass(frozen=True)
class Traffic:
    """What tasks that share one model send each other.

    Examples
    --------
    >>> traffic = Traffic("towers", 3, 10**6, batch=32, inputs=100, outputs=10)
    >>> traffic.batch_bytes, traffic.window_bytes
    (30720, 6666666)
    """

    kind: Kind  # How they share it
    tasks: int  # Number of tasks, the master included
    weights: int  # Parameters of the model
    batch: int  # Rows of a batch
    # inputs and outputs: Numbers of a row: of `stages` in the model's input and at each cut, of
    # `towers` in the input and in the output of each, of `devices` in the inputs and the outputs of
    # the divided layers
    inputs: int
    outputs: int
    window: int = WINDOW  # Batches between two commits to the parameter server
    divided: int = 0  # Parameters of the layers that `devices` divide

    @property
    def batch_bytes(self) -> int:
        """Bytes of a batch between the tasks, both ways together."""
        others = self.tasks - 1
        if not others:
            return 0
        input_bytes, made = 4 * self.batch * self.inputs, 4 * self.batch * self.outputs
        if self.kind == "stages":
            # All cuts but the last lead by way of the master, whose link sees their bytes twice.
            return input_bytes + 2 * made * (2 * others - 1)
        if self.kind == "towers":
            return others * (input_bytes + 2 * made)
        return others * 2 * input_bytes + 2 * (made + 4 * self.divided) * others // self.tasks

    @property
    def window_bytes(self) -> int:
        """Bytes at the end of a window: weights to the master, and from it to the server.

        The master fetches what the other stages or towers have trained, which is taken as an even
        part for each, and commits all weights. Weights of divided layers are with the master.
        """
        fetched = 0 if self.kind == "devices" else 4 * self.weights * (self.tasks - 1) // self.tasks
        return fetched + 4 * self.weights

    @property
    def mean_bytes(self) -> float:
        """Bytes of a batch and of its part of a window."""
        return self.batch_bytes + self.window_bytes / self.window

    @property
    def task_bytes(self) -> int:
        """Bytes of the arrays of a batch that a task holds at most, of those received and sent.

        Of a device they are input, output and the gradients of both, of all divided layers; the
        master has them whole. Of towers they are the master's, with the outputs of all. Of stages
        they are input, output and their gradients, with the model's input as the first one's. What
        a tower or a stage keeps inside of it does not follow from these numbers.
        """
        input_bytes, made = 4 * self.batch * self.inputs, 4 * self.batch * self.outputs
        if self.kind == "stages":
            return input_bytes + 4 * made
        if self.kind == "towers":
            return input_bytes + 2 * self.tasks * made
        return 2 * input_bytes + 2 * made

    def fits(self, available: float, seconds: float) -> bool:
        """Whether a link of so many bytes a second carries batches of so many seconds each."""
        return self.mean_bytes <= available * seconds

    def sentence(self, available: float, seconds: float | None = None) -> str:
        """Return the need in words.

        `available`: speed of the link in one direction [bytes/s].
        `seconds`: length of a batch [s].

        Examples
        --------
        >>> traffic = Traffic("stages", 4, 25_000_000, 64, 3072, 4096)
        >>> print(traffic.sentence(1.25e9, seconds=0.25))
        4 stages: 11.3 MB a batch of 64 rows and 175 MB a window of 16 batches pass the master's \
link; together 22.2 MB a batch, 0.018 s at 1.25 GB/s. Batches of 0.25 s need 88.8 MB/s
        """
        window = "1 batch" if self.window == 1 else f"{self.window} batches"
        mean, speed = self.mean_bytes, f"{available / 1e9:.3g} GB/s"
        text = (
            f"{self.tasks} {self.kind}: {self.batch_bytes / 1e6:.3g} MB a batch of {self.batch} "
            f"rows and {self.window_bytes / 1e6:.3g} MB a window of {window} pass the master's "
            f"link; together {mean / 1e6:.3g} MB a batch, {mean / available:.2g} s at {speed}"
        )
        if seconds is None:
            return text
        need = f"{text}. Batches of {seconds:g} s need {mean / seconds / 1e6:.3g} MB/s"
        if self.fits(available, seconds):
            return need
        advice = f"take a longer window, or fewer {self.kind}"
        if self.batch_bytes > available * seconds:
            advice = f"take fewer {self.kind}; a longer window is not enough"
        return f"{need}, and wait for the link: {advice}"
