"""What a worker's optimizer does in a window, and what is sent of it.

There are four kinds (`distkeras_grid.rules.LocalSteps`): the model's own optimizer; plain SGD with
the momentum of EAMSGD; plain SGD that also sums its gradients; and the mean gradient alone, without
steps, which the model's own optimizer takes later with that of all workers. All of them work
through the model's own ``train_step`` and use the gradients that it applies.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from distkeras_grid.errors import ConfigurationError
from distkeras_grid.rules import LocalSteps
from distkeras_grid.weights import Vector

# Options with which SGD is more than "w <- w - learning_rate g". Clipping is not one of them,
# because it changes the gradient and not the step.
_MORE_THAN_PLAIN = ("momentum", "weight_decay", "use_ema", "gradient_accumulation_steps")


def is_plain_sgd(optimizer: Any) -> bool:
    """Return whether an optimizer does only ``w <- w - learning_rate g``."""
    return _is_sgd(optimizer) and not _more_than_plain(optimizer)


def _is_sgd(optimizer: Any) -> bool:
    """Return whether it is Keras' own SGD; on PyTorch Keras makes a subclass of this name."""
    import keras

    kind = type(optimizer)
    own = kind.__module__.startswith("keras.") and kind.__name__ == "SGD"
    return own and isinstance(optimizer, keras.optimizers.SGD)


def _more_than_plain(optimizer: Any) -> list[str]:
    return [name for name in _MORE_THAN_PLAIN if getattr(optimizer, name, None)]


def check_plain_sgd(optimizer: Any, who: str) -> None:
    """Refuse an optimizer that does more than ``w <- w - learning_rate g``."""
    import keras

    if is_plain_sgd(optimizer):
        return
    received = type(optimizer).__name__
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        received += (
            f" around {type(optimizer.inner_optimizer).__name__}, as the policy mixed_float16 wants"
            " it: build the model with float32 or mixed_bfloat16"
        )
    if _is_sgd(optimizer):
        more = _more_than_plain(optimizer)
        received += "(" + ", ".join(f"{name}={getattr(optimizer, name)!r}" for name in more) + ")"
    raise ConfigurationError(
        f"{who} makes its steps from plain gradients: give it worker_optimizer="
        f"keras.optimizers.SGD(learning_rate) and nothing more. Received: {received}."
    )


def check_unscaled(optimizer: Any, who: str) -> None:
    """Refuse an optimizer that scales the loss if its steps are made outside ``train_step``.

    The loss of a window would not be scaled by it, and the gradient would be divided all the same.
    """
    import keras

    factor = getattr(optimizer, "loss_scale_factor", None)
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        received = "LossScaleOptimizer"
    elif factor:
        received = f"{type(optimizer).__name__}(loss_scale_factor={factor!r})"
    else:
        return
    raise ConfigurationError(
        f"{who} steps by the mean gradient of all workers, whose losses are not scaled: give it an "
        "optimizer without loss scaling, and a model that needs none (policy float32, or "
        f"mixed_bfloat16 in place of mixed_float16). Received: {received}."
    )


class LocalOptimizer:
    """Steps of the model's own optimizer: weights are sent as they are.

    `model`: compiled; its optimizer may be replaced.
    """

    # Whether what is sent comes from the gradients that the optimizer has got.
    sends_gradients = False

    def __init__(self, model: Any) -> None:
        if not model.optimizer.built:
            model.optimizer.build(model.trainable_variables)
        self._optimizer = model.optimizer

    @property
    def rated(self) -> Any:
        """The optimizer whose learning rate counts."""
        return self._optimizer

    def state(self) -> list[Any]:
        """Return the variables that workers share in addition to the weights: none."""
        return []

    def apply(self, gradients: Sequence[Any]) -> None:
        """Take a step with the mean gradients of all workers, if the rule has such steps."""
        raise ConfigurationError(
            f"{type(self).__name__} makes its steps in the window. Received: {len(gradients)} "
            "gradients."
        )

    def loaded(self, trainable: Sequence[Any]) -> Sequence[Any]:
        """Return the values of the variables for these weights; all are tensors."""
        return trainable

    def exported_weights(self, variables: Sequence[Any]) -> Sequence[Any]:
        """Return the weights that are sent, from the values of the variables."""
        return [variable.value for variable in variables]

    def weigh(self, rows: Any) -> None:
        """Note the rows of the batch that comes next: a number, or a tensor of one."""

    def finish(self, out: Vector, samples: int) -> None:
        """Replace the trainable part of the weights by what is sent instead, after a window."""

    def check_applied(self, before: int, model: Any) -> None:
        """Refuse a ``train_step`` that has not used the optimizer; `before` are its iterations."""
        if self.sends_gradients and int(np.asarray(self._optimizer.iterations)) == before:
            raise ConfigurationError(
                f"train_step of {type(model).__name__} applied nothing: this rule needs the "
                "gradients that train_step gives to self.optimizer.apply(...), and it gave none."
            )


class NesterovOptimizer(LocalOptimizer):
    """SGD with Nesterov's momentum.

    Keras keeps ``x + momentum v`` in the variables, at which it computes the gradient. ``x`` is
    sent, and ``v`` stays with the optimizer.

    `momentum`: at least 0 and below 1.
    """

    sends_gradients = True

    def __init__(self, model: Any, momentum: float) -> None:
        import keras

        config = model.optimizer.get_config()
        config.update(momentum=momentum, nesterov=momentum > 0)
        model.optimizer = keras.optimizers.SGD.from_config(config)
        super().__init__(model)
        self._momentum = momentum

    def loaded(self, trainable: Sequence[Any]) -> Sequence[Any]:
        """Return ``x + momentum v``."""
        return [x + ahead for x, ahead in zip(trainable, self._ahead(len(trainable)), strict=True)]

    def exported_weights(self, variables: Sequence[Any]) -> Sequence[Any]:
        """Return ``x``."""
        values = (variable.value for variable in variables)
        return [y - ahead for y, ahead in zip(values, self._ahead(len(variables)), strict=True)]

    def _ahead(self, count: int) -> list[Any]:
        # Without momentum Keras keeps no velocities.
        velocities = self._optimizer.momentums or [0.0] * count
        return [self._momentum * getattr(v, "value", v) for v in velocities]


class GradientSteps(LocalOptimizer):
    """Plain SGD that also sums its gradients; the sum is sent."""

    sends_gradients = True

    def __init__(self, model: Any) -> None:
        model.optimizer = _summing_sgd().from_config(model.optimizer.get_config())
        super().__init__(model)

    def finish(self, out: Vector, samples: int) -> None:  # noqa: ARG002
        """Put the sum where the weights were, and begin a new one."""
        _take_sums(self._optimizer, out)


class MeanGradientSteps(LocalOptimizer):
    """No steps in the window; the model's own optimizer uses the mean gradient of all workers.

    `model`: compiled. During a window, its optimizer only sums gradients.
    """

    sends_gradients = True

    def __init__(self, model: Any) -> None:
        import keras

        self.own = model.optimizer
        if not self.own.built:
            self.own.build(model.trainable_variables)
        model.optimizer = _sum_alone().from_config(keras.optimizers.SGD(0.0).get_config())
        super().__init__(model)
        self._variables = model.trainable_variables

    @property
    def rated(self) -> Any:
        """The optimizer whose learning rate counts."""
        return self.own

    def weigh(self, rows: Any) -> None:
        """Note how often the next gradient counts: a batch's loss is the mean of its rows."""
        self._optimizer.rows = rows

    def finish(self, out: Vector, samples: int) -> None:
        """Put the mean over the window's rows where the weights were, and begin a new one."""
        end = _take_sums(self._optimizer, out)
        np.divide(out[:end], samples, out=out[:end])

    def state(self) -> list[Any]:
        """Return the variables that workers share in addition to the weights."""
        return list(self.own.variables)

    def apply(self, gradients: Sequence[Any]) -> None:
        """Take a step with gradients in the shapes of the trainable variables."""
        self.own.apply(gradients, self._variables)


def install(model: Any, kind: LocalSteps, momentum: float) -> LocalOptimizer:
    """Give a model the optimizer of a kind of local steps."""
    if kind is LocalSteps.LOOK_AHEAD:
        return NesterovOptimizer(model, momentum)
    if kind is LocalSteps.GRADIENT:
        return GradientSteps(model)
    if kind is LocalSteps.NONE:
        return MeanGradientSteps(model)
    return LocalOptimizer(model)


def _take_sums(optimizer: Any, out: Vector) -> int:
    """Move the sums to the start of `out`; return where they end."""
    start = 0
    for variable in optimizer.sums:
        values = np.asarray(variable).ravel()
        out[start : start + values.size] = values
        start += values.size
        variable.assign(np.zeros(variable.shape, np.float32))
    return start


def _summing_sgd() -> Any:
    """Return SGD that also sums its gradients; a function, so that Keras is imported late."""
    import keras

    class SummingSGD(keras.optimizers.SGD):  # type: ignore[misc]
        def build(self, variables: Any) -> None:
            if self.built:
                return
            super().build(variables)
            self.sums = self.add_optimizer_variables(variables, "gradient_sum")

        def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
            self.assign_add(self.sums[self._get_variable_index(variable)], gradient)
            super().update_step(gradient, variable, learning_rate)

    return SummingSGD


def _sum_alone() -> Any:
    """Return the same without its steps; each gradient counts as often as its batch has rows."""
    import keras

    class GradientSum(_summing_sgd()):  # type: ignore[misc]
        rows: Any = 1

        def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:  # noqa: ARG002
            rows = keras.ops.cast(self.rows, variable.dtype)
            of_rows = keras.ops.multiply(gradient, rows)
            self.assign_add(self.sums[self._get_variable_index(variable)], of_rows)

    return GradientSum
