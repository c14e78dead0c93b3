"""What file systems say when they refuse, and what it means, in the JVM and over WebHDFS."""

from __future__ import annotations

from collections.abc import Mapping

# Signs that there is no room.
FULL = {
    "No space left on device": "Free some space there, or choose another path.",
    "Disk quota exceeded": "Free some of the quota, or choose another path.",
    "DSQuotaExceededException": "The directory's quota of bytes is used up. Delete files there, "
    "raise the quota, or choose another path.",
    "NSQuotaExceededException": "The directory's quota of names is used up. Delete files there, "
    "raise the quota, or choose another path.",
    "could only be written to 0 of": "The DataNodes are full, have died, or cannot be reached from "
    "here.",
}
_SAFE_MODE = (
    "Wait until its DataNodes have reported their blocks. An administrator ends it with: hdfs "
    "dfsadmin -safemode leave."
)
# Other reasons.
HINTS = {
    "SafeModeException": _SAFE_MODE,
    "safe mode": _SAFE_MODE,
    "ParentNotDirectoryException": "A part of the path is a file.",
    "is not a directory": "A part of the path is a file.",
    "PathComponentTooLongException": "Give it a shorter name.",
    "FSLimitException": "Give it a shorter name.",
}


def meaning(signs: Mapping[str, str], told: str) -> str | None:
    """Return what the first sign in a text means, None if there is none.

    Examples
    --------
    >>> meaning(HINTS, "ParentNotDirectoryException: /a is a file")
    'A part of the path is a file.'
    """
    return next((text for sign, text in signs.items() if sign in told), None)
