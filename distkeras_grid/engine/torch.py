"""The PyTorch engine: Keras' own ``train_step``, recorded once and repeated batch by batch.

PyTorch executes a step operation by operation. With small layers, Keras' Python code around the
operations takes longer than they do. So the operations of a step, forward and backward, are
recorded and repeated without it. They are the same, and so are the bits. ``torch.compile`` needs a
C++ compiler on each executor, and minutes for what is recorded in a second.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distkeras_grid.engine.jit import serves_tracing
from distkeras_grid.engine.keras_engine import KerasEngine
from distkeras_grid.errors import ConfigurationError
from distkeras_grid.rows import RowBlock
from distkeras_grid.weights import Vector

# Of each array of a batch: its type and its shape.
Signature = tuple[tuple[Any, tuple[int, ...]], ...]


class TorchEngine(KerasEngine):
    """Trains a Keras model on the PyTorch backend, window by window.

    If `jit` says so, the step of a whole batch is recorded. All other batches, and a ``train_step``
    of the user's, are executed by Keras, so that another number of rows costs nothing. The
    optimizer is always Keras' own, because its rate may change.

    Keras draws some random numbers, such as those of dropout without a seed, from PyTorch's own
    generator. The engine seeds that for each window, from its own seed and the number of windows,
    and puts the generator of the process back afterwards.
    """

    _serves = staticmethod(serves_tracing)

    def __init__(self, model: Any, **options: Any) -> None:
        import keras

        super().__init__(model, **options)
        self.jit = self.jit and not self._own_train_step
        # Keras would look for them again at each step.
        self._trainable = list(self._variables[: len(self.layout.trainable)])
        self._recorded: dict[Signature, Callable[..., Sequence[Any]]] = {}
        # Seed and number of windows.
        self._drawn = keras.Variable(_process_seed(), dtype="int64", trainable=False, name="drawn")

    def _trained(
        self, before: Vector, blocks: Iterable[RowBlock], after: Vector
    ) -> Mapping[str, Any]:
        import torch

        logs: Mapping[str, Any] = {}
        begun = False
        with self._own_numbers(), self._training():
            for block in blocks:
                if not begun:
                    self._begin(before, block)
                    begun = True
                arrays = [self._tensor(array) for array in block.arrays]
                for step in range(block.steps):
                    logs = self._train([array[step] for array in arrays])
        with torch.no_grad():
            np.copyto(after, self._flat_weights().cpu().numpy())
            results: Mapping[str, Any] = self.model.get_metrics_result()
            return logs if self._own_train_step else results

    def _train(self, batch: Sequence[Any]) -> Mapping[str, Any]:
        """Train a batch; return what ``train_step`` returns, where that is not in the metrics."""
        import torch

        if not self.jit or self._block_shape is None or len(batch[0]) != self._block_shape[1]:
            logs: Mapping[str, Any] = self.model.train_step(self._data(batch))
            return logs
        signature = tuple((array.dtype, tuple(array.shape)) for array in batch)
        if signature not in self._recorded:
            self._recorded[signature] = self._record(batch)
        self._steps.weigh(len(batch[0]))
        with torch.no_grad():
            gradients = self._recorded[signature](*batch)
            self.model.optimizer.apply(list(gradients), self._trainable)
        return {}

    def _record(self, batch: Sequence[Any]) -> Callable[..., Sequence[Any]]:
        """Return the operations of ``train_step`` up to the gradients; the state is left alone.

        They read and change the variables where they are, such as the metrics.
        """
        import torch
        from torch.fx.experimental.proxy_tensor import make_fx

        state = [(variable, variable.value.detach().clone()) for variable in self._state()]
        try:
            with torch.random.fork_rng(self._gpus, device_type="cuda"):
                recorded: Callable[..., Sequence[Any]] = make_fx(self._gradients)(*batch)
        except RuntimeError as error:
            raise ConfigurationError(
                f"The step of model {self.model.name!r} cannot be recorded: {error}. Layers, "
                "losses and metrics that read numbers in Python, such as seeds, need jit=False."
            ) from error
        finally:
            self.model.zero_grad()
            for variable, value in state:
                variable.assign(value)
        return recorded

    def _gradients(self, *batch: Any) -> list[Any]:
        """Return the gradients that ``train_step`` gives to the optimizer, without its step."""
        optimizer = self.model.optimizer
        values: list[Any] = []

        def take(gradients: Sequence[Any], _: object = None) -> None:
            values.extend(gradients)

        optimizer.apply = take
        try:
            self.model.train_step(self._data(batch))
        finally:
            # The method of the class is visible again.
            del optimizer.apply
        return values

    def apply(self, gradient: Vector, weights: Vector) -> None:
        """Take a step from `weights` with a gradient that all workers use; see `Engine`."""
        import torch

        with torch.no_grad():
            after = self._step(self._tensor(weights), self._tensor(gradient))
        np.copyto(weights, after.cpu().numpy())

    def device_state(self) -> list[Any]:
        """Return a copy of the state, as `swap_state` takes it."""
        return [variable.value.detach().clone() for variable in self._stateful_variables()]

    def swap_state(self, state: Sequence[Any]) -> list[Any]:
        """Put a state in and return the one that was there; see `KerasEngine`."""
        before = self.device_state()
        for variable, value in zip(self._stateful_variables(), state, strict=True):
            variable.assign(value)
        return before

    def set_seed(self, seed: Sequence[int]) -> None:
        """Seed the model's random generators, and PyTorch's for the windows of this engine."""
        super().set_seed(seed)
        word = np.random.SeedSequence(list(seed)).generate_state(1)[0]
        self._drawn.assign(np.array([word, 0], np.int64))

    def copy_from(self, model: Any) -> None:
        """Copy the state of another model with the same architecture and ``compile``."""
        super().copy_from(model)
        self._drawn.assign(_process_seed())

    def _test(self, arrays: Sequence[NDArray[Any]]) -> Mapping[str, Any]:
        import torch

        with torch.no_grad():
            data = self._data([self._tensor(array) for array in arrays])
            logs: Mapping[str, Any] = self.model.test_step(data)
            return logs

    def _stateful_variables(self) -> list[Any]:
        return [self._drawn, *super()._stateful_variables()]

    def _state(self) -> list[Any]:
        return [self._drawn, *super()._state()]

    def _begin(self, before: Vector, block: RowBlock) -> None:
        """Prepare for a window from some weights."""
        import torch

        self._build_metrics(block)
        with torch.no_grad():
            self.model.reset_metrics()
            self._assign(self._tensor(before))

    @contextmanager
    def _training(self) -> Iterator[None]:
        """Tell PyTorch's own layers in the model that it trains, as ``fit`` does."""
        self.model.train()
        try:
            yield
        finally:
            self.model.eval()

    @contextmanager
    def _own_numbers(self) -> Iterator[None]:
        """Let PyTorch's generator draw this engine's numbers for the next window."""
        import torch

        seed, windows = (int(number) for number in np.asarray(self._drawn))
        with torch.random.fork_rng(self._gpus, device_type="cuda"):
            torch.manual_seed(int(np.random.SeedSequence([seed, windows]).generate_state(1)[0]))
            yield
        self._drawn.assign(np.array([seed, windows + 1], np.int64))

    @property
    def _gpus(self) -> list[Any]:
        return [] if self._device.type == "cpu" else [self._device]

    @property
    def _device(self) -> Any:
        return self._variables[0].value.device

    def _tensor(self, array: NDArray[Any]) -> Any:
        """Return an array on the model's device, on a CPU in the array's own memory."""
        import torch

        # PyTorch would warn that somebody might write into it.
        writable = array if array.flags.writeable else array.copy()
        return torch.from_numpy(writable).to(self._device)

    def _parts(self, flat: Any) -> list[Any]:
        sizes = [variable.size for variable in self.layout.variables]
        parts = zip(self.layout.variables, flat.split(sizes), strict=True)
        return [part.reshape(variable.shape) for variable, part in parts]

    def _flat(self, values: Sequence[Any]) -> Any:
        import torch

        return torch.cat([value.reshape(-1) for value in values])


def _process_seed() -> NDArray[np.int64]:
    """Return what ``keras.utils.set_random_seed`` has seeded PyTorch with, and no window yet."""
    import torch

    return np.array([torch.initial_seed() & 0x7FFFFFFF, 0], np.int64)


def prepare_process(threads: int) -> int:
    """Limit PyTorch to some threads.

    Unlike the other backends, PyTorch also takes another number while it runs.
    """
    if "torch" not in sys.modules:
        # What PyTorch calls, such as MKL, reads it once.
        os.environ["OMP_NUM_THREADS"] = str(threads)
    import torch

    torch.set_num_threads(threads)
    in_force: int = torch.get_num_threads()
    return in_force


def count_gpus() -> int:
    """Return how many GPUs PyTorch sees."""
    import torch

    count: int = torch.cuda.device_count()
    return count
