"""Vectors as fewer bytes, for exchanges over slow links.

``bfloat16`` (Wang and Kanwar, "BFloat16: the secret to high performance on Cloud TPUs", 2019) keeps
the range of float32 and the first eight bits of its precision: half the bytes, and a relative error
of at most 2^-8. This is small for the change of a window but large for weights. So only rules that
send changes or gradients may be compressed (`RuleProperties.compressible`), and the center itself
stays float32.

``dgc`` sends only the numbers of a vector that are not zero. Workers make sure that these are few
(`distkeras_grid.rules.gradient_compression`). If a reply is the center, only the numbers that have
changed since this seat's last reply are sent, bit for bit (`DeltaEncoder` on the server,
`DeltaDecoder` on the worker). Nothing is lost, and a vector that would not become shorter is sent
as it is.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, Literal, TypeAlias, get_args

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from distkeras_grid.errors import ConfigurationError, RemoteProtocolError
from distkeras_grid.rules.gradient_compression import DeepGradientCompression
from distkeras_grid.spec import CompressionName
from distkeras_grid.weights import Vector

COMPRESSIONS: tuple[CompressionName, ...] = get_args(CompressionName)
#: A trainer's argument ``compression``.
Compression: TypeAlias = Literal["bfloat16"] | DeepGradientCompression


def check_compression(value: Any) -> Compression | None:
    """Convert a user's ``compression``; None stays None.

    Examples
    --------
    >>> check_compression("dgc") == DeepGradientCompression()
    True
    """
    if value is None or isinstance(value, DeepGradientCompression):
        return value
    if value not in COMPRESSIONS:
        raise ConfigurationError(
            f"compression must be one of {', '.join(map(repr, COMPRESSIONS))}, or None. "
            f"Received: {value!r}."
        )
    return DeepGradientCompression() if value == "dgc" else "bfloat16"


class Bfloat16:
    """A vector sent as bfloat16, rounded to nearest.

    Examples
    --------
    >>> wire, vector = Bfloat16(2), np.array([1.0, 1.001], np.float32)
    >>> data = wire.pack(vector)
    >>> wire.unpack(vector)
    >>> len(data), vector.tolist()
    (4, [1.0, 1.0])
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self.lengths = f"{2 * size}"

    def fits(self, payload: int) -> bool:
        """Whether it is two bytes a scalar."""
        return payload == 2 * self._size

    def pack(self, vector: Vector) -> memoryview:
        """Return the bytes of a vector; valid until the next `pack` or receipt."""
        np.copyto(self._values, vector, casting="unsafe")
        return self._values.view(np.uint8).data

    def place(self, payload: int, vector: Vector) -> memoryview:  # noqa: ARG002
        """Return where the bytes of a vector are received."""
        return self._values.view(np.uint8).data

    def unpack(self, vector: Vector) -> None:
        """Fill a vector with what was packed or received last."""
        np.copyto(vector, self._values)

    @cached_property
    def _values(self) -> NDArray[Any]:
        # Allocated in the first exchange, so that a client without a seat costs no memory.
        return np.empty(self._size, ml_dtypes.bfloat16)


class Sparse:
    """A vector sent as the positions of its nonzero numbers (uint32) and their values (float32).

    If the whole vector is not longer, it is sent instead. The number of bytes says which form it
    is.

    `size`: scalars in the vector, at most 2^32.

    Examples
    --------
    >>> wire, vector = Sparse(9), np.zeros(9, np.float32)
    >>> vector[7] = 0.1
    >>> data = wire.pack(vector)
    >>> data.nbytes, sparse_bytes(vector)
    (8, 8)
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self.lengths = f"{4 * size}, or pairs of 8 in fewer,"
        self._received = np.empty(0, np.uint32)

    def fits(self, payload: int) -> bool:
        """Whether it is the whole vector, or pairs that are shorter."""
        return payload == 4 * self._size or (0 < payload < 4 * self._size and payload % 8 == 0)

    def pack(self, vector: Vector) -> memoryview:
        """Return the bytes of a vector."""
        if sparse_bytes(vector) == 4 * self._size:
            return vector.data.cast("B")
        bits = vector.view(np.uint32)
        # NumPy finds positions ten times as fast in booleans as in numbers.
        places = np.flatnonzero(bits != 0)
        if not places.size:
            # No bytes would mean that there is no vector, so the first number is sent.
            places = np.zeros(1, np.int64)
        return np.concatenate([places.astype(np.uint32), bits[places]]).view(np.uint8).data

    def place(self, payload: int, vector: Vector) -> memoryview:
        """Return where so many bytes of a vector are received."""
        if payload == 4 * self._size:
            self._received = np.empty(0, np.uint32)
            return vector.data.cast("B")
        self._received = np.empty(payload // 4, np.uint32)
        return self._received.view(np.uint8).data

    def unpack(self, vector: Vector) -> None:
        """Fill a vector with what was received."""
        if not self._received.size:
            return
        places, values = np.split(self._received, 2)
        if places[-1] >= self._size or not (places[1:] > places[:-1]).all():
            raise RemoteProtocolError(
                f"A sparse vector names places in order, below {self._size}. Received: others."
            )
        vector.fill(0)
        vector.view(np.uint32)[places] = values


#: The form of vectors at one end of a connection.
Wire: TypeAlias = Bfloat16 | Sparse


def build_wire(name: CompressionName, size: int) -> Wire:
    """Return the form in which vectors of this size are sent."""
    return Bfloat16(size) if name == "bfloat16" else Sparse(size)


def sparse_bytes(vector: Vector) -> int:
    """Return the number of bytes of a vector sent as `Sparse`.

    Examples
    --------
    >>> sparse_bytes(np.array([0, 0, 5, 0, 0], np.float32)), sparse_bytes(np.ones(5, np.float32))
    (8, 20)
    """
    pairs = max(1, int(np.count_nonzero(vector.view(np.uint32))))
    return min(8 * pairs, 4 * vector.size)


def to_changes(vector: Vector, known: Vector) -> None:
    """Replace a vector by its changes since `known`, and update `known`.

    A change consists of the bits that differ. So nothing is lost, and equal numbers become zero.

    `vector, known`: same shape, ``float32``; both change in place.

    Examples
    --------
    >>> sent, told, heard = np.array([1, 2], np.float32), *np.ones((2, 2), np.float32)
    >>> to_changes(sent, told)
    >>> from_changes(sent, heard)
    >>> sent.tolist(), told.tolist(), heard.tolist()
    ([1.0, 2.0], [1.0, 2.0], [1.0, 2.0])
    """
    bits, old = vector.view(np.uint32), known.view(np.uint32)
    np.bitwise_xor(bits, old, out=bits)
    np.bitwise_xor(old, bits, out=old)


def from_changes(vector: Vector, known: Vector) -> None:
    """Replace changes by the vector that they lead to, and update `known`."""
    bits, old = vector.view(np.uint32), known.view(np.uint32)
    np.bitwise_xor(bits, old, out=bits)
    np.copyto(old, bits)


class DeltaEncoder:
    """The server's side of replies: the center that each seat knows, and the changes to send.

    Examples
    --------
    >>> encoder, decoder = DeltaEncoder("dgc", 9), DeltaDecoder("dgc", np.zeros(9, np.float32))
    >>> encoder.start(0, np.zeros(9, np.float32))
    >>> reply = np.zeros(9, np.float32)
    >>> reply[2] = 5
    >>> encoder.encode(0, reply)
    8
    >>> decoder.decode(reply)
    >>> reply[2]
    np.float32(5.0)
    """

    def __init__(
        self, compression: CompressionName | None, size: int, *, replies: bool = True
    ) -> None:
        self._sparse = compression == "dgc"
        self._changes = self._sparse and replies
        self._replies = replies
        self._plain = size * (2 if compression == "bfloat16" else 4)
        self._known: dict[int, Vector] = {}

    def start(self, seat: int, center: Vector) -> None:
        """Record that a seat starts and receives the whole center."""
        if self._changes:
            self._known[seat] = center.copy()

    def encode(self, seat: int, reply: Vector) -> int:
        """Replace a reply by what is sent of it; return the number of bytes, which may be 0.

        `reply`: shape ``(size,)``, ``float32``; changes in place.
        """
        if not self._replies:
            return 0
        if not self._sparse:
            return self._plain
        if self._changes:
            to_changes(reply, self._known[seat])
        return sparse_bytes(reply)

    def bytes_of(self, vector: Vector) -> int:
        """Return the number of bytes in which a vector is sent."""
        return sparse_bytes(vector) if self._sparse else self._plain

    def reset(self, seat: int) -> None:
        """Record that a seat may have lost a reply; the next one has the whole center."""
        if seat in self._known:
            self._known[seat].fill(0)


class DeltaDecoder:
    """A worker's side of replies: the center that it knows, to which it applies the changes."""

    def __init__(self, compression: CompressionName | None, known: Vector) -> None:
        self._changes = compression == "dgc"
        self._known = known

    def decode(self, reply: Vector) -> None:
        """Replace received changes by the whole reply."""
        if self._changes:
            from_changes(reply, self._known)

    def reset(self) -> None:
        """Record that a reply may be lost; the server sends the whole center again."""
        if self._changes:
            self._known.fill(0)
