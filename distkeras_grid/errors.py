"""Every exception of the project.

::

    GridError
    ├── ConfigurationError (ValueError)     an argument, a flag or a setting is wrong
    │   └── UnknownArgumentError            an unknown keyword, with what was probably meant
    ├── DataError                           the data do not fit what was asked of them
    │   ├── SchemaError                     a column is missing, or of a type that cannot be used
    │   ├── LabelError                      labels outside the model's range
    │   ├── EmptyDataError                  no rows
    │   ├── EmptySplitError                 a class would have no tiles in a split
    │   ├── SplitLeakError                  rows of more than one split, or a source in two splits
    │   └── ImageError                      an image that cannot be read or tiled
    │       ├── AmbiguousImageError         a file of several images, and none chosen
    │       └── UnreadableImageError        a disk, a server or memory fails; the image may be good
    ├── EnvironmentMismatchError            executors lack packages, or have other versions
    ├── ClusterError                        Spark cannot run what was asked
    │   ├── ApplicationNotFoundError        YARN does not know an application
    │   ├── NotEnoughSlotsError             fewer task slots than workers that must run at once
    │   ├── StartTimeoutError               workers did not all start in time
    │   └── SandboxError                    a daemon of the sandbox does not start, stop or answer
    ├── BusyError                           another command works on the same data set or sandbox
    ├── StorageError                        a path cannot be read or written
    │   ├── PathNotFoundError
    │   ├── NotAuthenticatedError           a cluster wants a Kerberos ticket, and there is none
    │   ├── OutputExistsError
    │   ├── NoSpaceError
    │   └── LocalDiskError                  the disk of a worker's host fails
    ├── ParameterServerError
    │   ├── ServerUnreachableError          no connection; names both ends
    │   ├── ProtocolError                   bytes or messages that break the protocol
    │   │   ├── LocalProtocolError          we broke it
    │   │   └── RemoteProtocolError         the other side broke it
    │   ├── AuthenticationError             the other side does not hold the run's key
    │   ├── RefusedError                    the server refused a message, and says why
    │   │   └── NonFiniteCenterError        a fold would make the center NaN or infinite
    │   ├── ValidateError                the user's function failed; the center is whole
    │   ├── OutlierError                    a commit is an outlier, and the run stops then
    │   └── FencedError                     a newer attempt has taken this seat, or run
    └── TrainingError
        ├── NonFiniteLossError              the loss became NaN or infinite
        └── WorkerFailedError               a worker failed; carries its own message

Messages say what is wrong, then what was received, then what to do. All of them can be pickled,
because executors send them to the driver.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import TypeVar

#: What decoders of JSON and MessagePack raise for what is neither. The errors of msgspec, `json`
#: and UTF-8 are ValueErrors; values that are nested too deeply give a RecursionError.
UNREADABLE = (ValueError, RecursionError)


class GridError(Exception):
    """Base of every exception of the project."""


class ConfigurationError(GridError, ValueError):
    """An argument, a flag or a setting is wrong."""


class UnknownArgumentError(ConfigurationError):
    """An unknown keyword."""

    @classmethod
    def among(
        cls,
        owner: str,
        unknown: Iterable[str],
        known: Iterable[str],
    ) -> UnknownArgumentError:
        """Build the error, with the known name that is nearest to each unknown one.

        Parameters
        ----------
        owner : str
            What was given the arguments, such as ``"ADAG"``.
        unknown, known : iterable of str
            The names that are not known, and all names that are.

        Examples
        --------
        >>> str(UnknownArgumentError.among("ADAG", ["batchsize"], ["batch_size", "loss"]))
        "ADAG has no argument 'batchsize' (did you mean 'batch_size'?). Known: batch_size, loss."
        """
        names = sorted(known)
        parts = [f"{name!r}{_hint(name, names)}" for name in unknown]
        return cls(f"{owner} has no argument {', '.join(parts)}. Known: {', '.join(names)}.")


def _hint(name: str, known: Sequence[str]) -> str:
    """Return what was probably meant, in brackets; nothing where nothing is near."""
    near = difflib.get_close_matches(name, known, n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""


class DataError(GridError):
    """The data do not fit what was asked of them."""


class SchemaError(DataError):
    """A column is missing, or of a type that cannot be used."""


class LabelError(DataError):
    """Labels lie outside the model's range."""


class EmptyDataError(DataError):
    """There are no rows to work on."""


class SplitLeakError(DataError):
    """Rows of more than one split came together, or a source stands in two splits."""


class EmptySplitError(DataError):
    """A split would have no tile of a class.

    Parameters
    ----------
    message : str
    cells : sequence of (str, str, int)
        Class, split, and the number of units that the class has.
    """

    def __init__(self, message: str, cells: Sequence[tuple[str, str, int]] = ()) -> None:
        super().__init__(message, cells)
        self.cells = tuple(cells)

    def __str__(self) -> str:
        return str(self.args[0])

    @classmethod
    def of(
        cls,
        cells: Sequence[tuple[str, str, int]],
        received: str,
        advice: str = "ask for fewer splits (--split 0.8:0.2) or other shares, leave the class out "
        "(--glob)",
    ) -> EmptySplitError:
        """Build the error.

        Parameters
        ----------
        cells : sequence of (str, str, int)
        received : str
            What was asked for.
        advice : str, optional
            What to do in place of adding images.
        """
        text = "; ".join(
            f"class {label!r} has no tile in {split} ({units} unit{'s' * (units != 1)})"
            for label, split, units in cells
        )
        return cls(
            f"{text}. A unit is an image, or images that must stay together: of one group, with "
            "the same pixels, or of the same place (listed as alike; --near-duplicates report does "
            f"not join these). Received: {received}. Add images, {advice}, or accept it "
            "(--allow-empty).",
            cells,
        )


class ImageError(DataError):
    """An image cannot be read or tiled."""


class AmbiguousImageError(ImageError):
    """A file holds several pages, channels or focal planes, and nothing says which to take."""


class UnreadableImageError(ImageError):
    """A disk or a server fails, or memory runs out, while an image is read; it may be good."""


class EnvironmentMismatchError(GridError):
    """Executors lack packages that the driver has, or have other versions of them."""


class ClusterError(GridError):
    """Spark cannot run what was asked of it."""


class ApplicationNotFoundError(ClusterError):
    """YARN does not know an application, or has forgotten it."""


class NotEnoughSlotsError(ClusterError):
    """Fewer task slots than workers that must run at once."""


class StartTimeoutError(ClusterError):
    """The workers did not all start in time."""


class SandboxError(ClusterError):
    """A daemon of the sandbox does not start, stop or answer."""


class BusyError(GridError):
    """Another command works on the same data set or sandbox."""


class StorageError(GridError):
    """A path cannot be read or written."""


class PathNotFoundError(StorageError):
    """A path does not exist."""


class OutputExistsError(StorageError):
    """The output exists already and would be overwritten."""


class NotAuthenticatedError(StorageError):
    """A cluster with Kerberos wants a ticket, and there is none that is valid."""


class NoSpaceError(StorageError):
    """What has to be written does not fit the free space."""


class LocalDiskError(StorageError):
    """The disk of a worker's host cannot be written or read; another host's may be good."""


class ParameterServerError(GridError):
    """Something went wrong between a worker or the driver and the parameter server."""


class ServerUnreachableError(ParameterServerError):
    """No connection to the parameter server."""


class ProtocolError(ParameterServerError):
    """Bytes or messages that break the protocol."""


class LocalProtocolError(ProtocolError):
    """We tried to break the protocol."""


class RemoteProtocolError(ProtocolError):
    """The other side broke the protocol."""


class AuthenticationError(ParameterServerError):
    """The other side does not hold the run's key."""


class RefusedError(ParameterServerError):
    """The server refused a message, and says why."""


class NonFiniteCenterError(RefusedError):
    """A fold would make the center NaN or infinite; nothing was folded."""


class ValidateError(ParameterServerError):
    """The function that a trainer has as `validate` failed. The center is whole.

    Attributes
    ----------
    function : str
        Name of the function; empty where only the message is known.
    error : str
        Class name of what it raised, likewise.
    """

    function: str = ""
    error: str = ""

    @classmethod
    def of(cls, function: str, error: Exception) -> ValidateError:
        """Build the error of a function that raised `error`.

        Examples
        --------
        >>> ValidateError.of("mine", KeyError("loss"))
        ValidateError("The function 'mine' (validate) failed with KeyError: 'loss'.")
        """
        failed = cls(f"The function {function!r} (validate) failed with {name_and_text(error)}.")
        failed.function, failed.error = function, type(error).__name__
        return failed


class OutlierError(ParameterServerError):
    """A commit is an outlier, and the run was asked to stop then."""


class FencedError(ParameterServerError):
    """A newer attempt has taken this worker's seat, or this driver's run."""


class TrainingError(GridError):
    """Training failed."""


class NonFiniteLossError(TrainingError):
    """The loss became NaN or infinite."""


class WorkerFailedError(TrainingError):
    """A worker failed; the message is its own."""


def name_and_text(error: BaseException) -> str:
    """Return the class of an error and what it says, in characters that can be sent.

    Names of files in another encoding have lone surrogates, and an error of a user's own may fail
    to say anything.

    Examples
    --------
    >>> name_and_text(ValueError("wrong shape"))
    'ValueError: wrong shape'
    """
    try:
        text = str(error)
    except Exception:  # noqa: BLE001
        text = "it cannot be put into words"
    line = f"{type(error).__name__}: {text}"
    return line.encode("utf-8", "backslashreplace").decode()


_Error = TypeVar("_Error", bound=GridError)


def error_named(name: str, message: str, among: type[_Error]) -> _Error | None:
    """Build an exception of this module that another process has named.

    The one place where exceptions are built from names: names come from outside, so only classes
    of the tree above can be named.

    Parameters
    ----------
    name : str
        Its class name.
    message : str
        What it said.
    among : type
        The class, or a class above it.

    Returns
    -------
    GridError or None
        None if there is no such class at or below `among`.

    Examples
    --------
    >>> error_named("NonFiniteLossError", "NaN", TrainingError)
    NonFiniteLossError('NaN')
    >>> error_named("NonFiniteLossError", "NaN", ParameterServerError) is None
    True
    """
    kind = globals().get(name)
    if isinstance(kind, type) and issubclass(kind, among):
        return kind(message)
    return None
