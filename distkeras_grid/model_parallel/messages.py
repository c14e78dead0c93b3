"""The messages between master, devices and driver; arrays follow some of them.

There are two conversations. A device asks the driver where the master is, connects to it, and from
then on answers its requests. The master tells the driver where it is, and what it decides.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from distkeras_grid.field_types import Count, Name, Seconds
from distkeras_grid.model_parallel.geometry import Convolution
from distkeras_grid.model_parallel.schedule import TimedPass
from distkeras_grid.parameter_server.message_schema import ArrayMessage, MessageSchema
from distkeras_grid.parameter_server.messages import LONGEST_FAILURE

#: Most characters of a line of a report.
LINE_LENGTH = 1000
#: Most passes in a report.
MOST_PASSES = 4000


class Welcome(ArrayMessage, frozen=True):
    """The other end has proved that it has the key."""

    layers: tuple[Convolution, ...] = ()  # The layers that the master may ask for


class Forward(ArrayMessage, frozen=True):
    """Compute the output of some units; the input and their kernel follow."""

    layer: Name  # Name of the layer
    call: Count  # Number of this pass through the layer


class Backward(ArrayMessage, frozen=True):
    """Compute the gradients of a pass; the gradient of its output follows."""

    # layer and call: As in `Forward`. If the device has kept another pass, input and kernel follow,
    # too.
    layer: Name
    call: Count


class ForwardResult(ArrayMessage, frozen=True):
    """The output of the units; it took `seconds` to compute."""

    seconds: Seconds


class InputGradient(ArrayMessage, frozen=True):
    """The part of the input's gradient, or nothing if it is not needed."""

    seconds: Seconds


class KernelGradient(ArrayMessage, frozen=True):
    """The gradient of the units' kernel."""

    seconds: Seconds


class Echo(ArrayMessage, frozen=True):
    """Send these arrays back; this measures the line."""


class DeviceFailure(ArrayMessage, frozen=True):
    """The device cannot compute what was asked; `error` is the class name of the exception."""

    error: Name
    message: Annotated[str, msgspec.Meta(max_length=LONGEST_FAILURE)]


class FinishDevice(ArrayMessage, frozen=True):
    """There is nothing more to compute."""


class Announce(ArrayMessage, frozen=True):
    """The master accepts devices at this address."""

    host: Name
    port: Annotated[int, msgspec.Meta(gt=0, lt=65536)]
    unix_path: Name | None


class Locate(ArrayMessage, frozen=True):
    """The device asks where the master is."""


class LocateReply(ArrayMessage, frozen=True):
    """The master is at this address; it is not known yet if there is no host."""

    host: Name | None = None  # host and port and unix_path: As in `Announce`
    port: Annotated[int, msgspec.Meta(ge=0, lt=65536)] = 0
    unix_path: Name | None = None
    released: bool = False  # Whether a master of this run has said `Release`


class Release(ArrayMessage, frozen=True):
    """The master needs no devices until the end of the run."""


class Report(ArrayMessage, frozen=True):
    """What the master tells the user."""

    # Lines to show
    lines: Annotated[
        tuple[Annotated[str, msgspec.Meta(max_length=LINE_LENGTH)], ...],
        msgspec.Meta(max_length=1000),
    ]
    # Units of each device, by layer that is divided; None if nothing is said about them
    shares: dict[Name, tuple[Count, ...]] | None = None
    # The passes of a batch through stages, in the master's time
    passes: Annotated[tuple[TimedPass, ...], msgspec.Meta(max_length=MOST_PASSES)] = ()


class Acknowledgement(ArrayMessage, frozen=True):
    """The driver has recorded the message."""


class TowerForward(ArrayMessage, frozen=True):
    """Compute the output of a tower or a stage; the input follows."""

    call: Count  # Number of this pass
    training: bool  # Whether it is a pass of the training, for which a gradient will follow


class TowerBackward(ArrayMessage, frozen=True):
    """Take the tower's step for a pass; the gradient of its output follows."""

    call: Count  # Number of the pass


class StepReply(ArrayMessage, frozen=True):
    """The tower has taken its step; gradients and step took `seconds`."""

    seconds: Seconds


class StartDevice(ArrayMessage, frozen=True):
    """Begin with a new optimizer, and with the random numbers of the model as it was loaded."""


class DeviceScheduleOffset(ArrayMessage, frozen=True):
    """Let schedules of the learning rate go on after this number of batches."""

    steps: Count


class PutWeights(ArrayMessage, frozen=True):
    """Go on with these weights, a flat vector that follows."""


class PutState(ArrayMessage, frozen=True):
    """Go on with what `GetDeviceState` returned, which follows."""

    size: Count


class SetRate(ArrayMessage, frozen=True):
    """Set the learning rate of the tower's optimizer."""

    value: float


class FetchWeights(ArrayMessage, frozen=True):
    """Send the tower's weights back as a flat vector."""


class GetDeviceState(ArrayMessage, frozen=True):
    """Send back what the tower changes besides its weights: optimizer, counters, generators."""


class TowerState(ArrayMessage, frozen=True):
    """A packed tree of `size` bytes, padded to whole ``float32`` numbers."""

    size: Count


class StageBackward(ArrayMessage, frozen=True):
    """Add a stage's gradients for a pass to their sum; the gradient of its output follows."""

    call: Count  # Number of the pass


class StageStep(ArrayMessage, frozen=True):
    """Take a stage's step with the sum of the gradients."""


class FetchModel(ArrayMessage, frozen=True):
    """The device asks the driver for its part of the model."""


class ModelArchive(ArrayMessage, frozen=True):
    """A ``.keras`` archive of `size` bytes, padded to whole ``float32`` numbers."""

    size: Count


_MESSAGES: tuple[type[ArrayMessage], ...] = (
    Welcome,
    Forward,
    Backward,
    ForwardResult,
    InputGradient,
    KernelGradient,
    Echo,
    DeviceFailure,
    FinishDevice,
    Announce,
    Locate,
    LocateReply,
    Report,
    Acknowledgement,
    TowerForward,
    TowerBackward,
    StepReply,
    StartDevice,
    PutWeights,
    PutState,
    SetRate,
    FetchWeights,
    GetDeviceState,
    TowerState,
    StageBackward,
    StageStep,
    FetchModel,
    ModelArchive,
    DeviceScheduleOffset,
    Release,
)
VOCABULARY = MessageSchema(b"DKGM", 3, _MESSAGES)
