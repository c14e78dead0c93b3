"""What file systems say when they refuse, and what it means, in the JVM and over WebHDFS."""

from __future__ import annotations

from collections.abc import Mapping

# There is no room.
FULL = {
    "No space left on device": "free some space there, or choose another path",
    "Disk quota exceeded": "free some of the quota, or choose another path",
    "DSQuotaExceededException": "the directory's quota of bytes is used up; delete files there, "
    "raise the quota, or choose another path",
    "NSQuotaExceededException": "the directory's quota of names is used up; delete files there, "
    "raise the quota, or choose another path",
    "could only be written to 0 of": "the DataNodes are full, have died, or cannot be reached from "
    "here",
}
_SAFE_MODE = (
    "wait until its DataNodes have reported their blocks; an administrator ends it with: hdfs "
    "dfsadmin -safemode leave"
)
# It is for another reason.
HINTS = {
    "SafeModeException": _SAFE_MODE,
    "safe mode": _SAFE_MODE,
    "ParentNotDirectoryException": "a part of the path is a file",
    "is not a directory": "a part of the path is a file",
    "PathComponentTooLongException": "give it a shorter name",
    "FSLimitException": "give it a shorter name",
}


def meaning(signs: Mapping[str, str], told: str) -> str | None:
    """Return what the first sign in a text means, None if there is none.

    Examples
    --------
    >>> meaning(HINTS, "ParentNotDirectoryException: /a is a file")
    'a part of the path is a file'
    """
    return next((text for sign, text in signs.items() if sign in told), None)
