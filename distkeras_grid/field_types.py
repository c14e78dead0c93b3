"""The ranges of what a process of a run tells another, as types of fields.

msgspec checks them where a message or a file is read.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec

#: Not negative, and exact in JSON too. The server's core refuses more than the schedule allows.
Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, lt=2**53)]
#: A duration or a Unix time, not negative and finite.
Seconds: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=1e12)]
#: Digest of rows, or of their numbers.
RowDigest: TypeAlias = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{16}$")]
#: Longest name and longest place, characters.
LONGEST_NAME = 200
LONGEST_PLACE = 1000
#: Name of a metric, of an exception or of a host.
Name: TypeAlias = Annotated[str, msgspec.Meta(max_length=LONGEST_NAME)]
#: Where something is: a path on a host, or a location of tiles.
Place: TypeAlias = Annotated[str, msgspec.Meta(max_length=LONGEST_PLACE)]
#: By name; NaN and infinity are legal, for a metric may have no value.
Metrics: TypeAlias = Annotated[dict[Name, float], msgspec.Meta(max_length=1000)]
#: Most bytes of the state of a window's metrics: those of 80 AUCs.
STATE_LIMIT = 512 * 1024
#: That state, or the sum of several, as float64.
MetricState: TypeAlias = Annotated[bytes, msgspec.Meta(max_length=STATE_LIMIT)]
#: Metric of a model by the name that its own ``train_step`` gives the result.
Sources: TypeAlias = Annotated[dict[Name, Name], msgspec.Meta(max_length=1000)]
#: By location.
PlaceCounts: TypeAlias = Annotated[dict[Place, Count], msgspec.Meta(max_length=100)]
