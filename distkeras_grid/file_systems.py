"""What file systems say when they refuse, and what it means, in the JVM and over WebHDFS."""

from __future__ import annotations

import re
from collections.abc import Mapping

# Signs that there is no room.
FULL = {
    "No space left on device": "Free some space there, or choose another path.",
    "Disk quota exceeded": "Free some of the quota, or choose another path.",
    "DSQuotaExceededException": "The directory's quota of bytes is used up. Delete files there, "
    "raise the quota, or choose another path.",
    "NSQuotaExceededException": "The directory's quota of names is used up. Delete files there, "
    "raise the quota, or choose another path.",
    "could only be written to 0 of": "The DataNodes have too little room left.",
}
_SAFE_MODE = (
    "Wait until its DataNodes have reported their blocks. An administrator ends it with: hdfs "
    "dfsadmin -safemode leave."
)
_LOST = (
    "A block has no copy that can be read: its DataNodes are dead, or all copies are damaged. Look "
    "with: hdfs fsck PATH -files -blocks -locations."
)
_DAMAGED = (
    "A block is damaged. If this comes again, all its copies are: delete the file and write it "
    "again, from where it came."
)
# Signs that HDFS does not serve: it is in safe mode, or DataNodes or blocks of theirs are missing.
NODES = {
    "SafeModeException": _SAFE_MODE,
    "could only be written to 0 of": "No DataNode is alive, or those that are cannot be reached "
    "from here. Look at the NameNode's page (Datanodes); it is not a lack of space.",
    "BlockMissingException": _LOST,
    "Could not obtain block": _LOST,
    "nodes contain this block": _LOST,
    "ChecksumException": _DAMAGED,
}
# Signs of a cluster with Kerberos, and a user who has no valid ticket.
_NO_TICKET = (
    "There is no valid Kerberos ticket: get one with kinit, or give --principal and --keytab."
)
_NO_KEY = "The keytab and the principal do not go together: compare them with klist -kt FILE."
STRANGER = {
    "Client cannot authenticate via": _NO_TICKET,
    "GSS initiate failed": _NO_TICKET,
    "Failed to find any Kerberos tgt": _NO_TICKET,
    "No valid credentials provided": _NO_TICKET,
    "Authentication required": _NO_TICKET,
    "Login failure for user": _NO_KEY,
    "LoginException": _NO_KEY,
    "KerberosAuthException": _NO_KEY,
    "SIMPLE authentication is not enabled": "It wants Kerberos, and HADOOP_CONF_DIR does not say "
    "so. Set it to the folder with the cluster's core-site.xml.",
}
# Signs of a file that the user may not open. Spark says of one on a local disk that it is missing.
_NO_PERMISSION = "The user of this Spark session lacks the permission."
FORBIDDEN = {
    "AccessControlException": _NO_PERMISSION,
    "Permission denied": _NO_PERMISSION,
    "FAILED_READ_FILE.FILE_NOT_EXIST": "If it is there, the user of this Spark session lacks the "
    "permission.",
}
# Other reasons.
HINTS = {
    **NODES,
    "safe mode": _SAFE_MODE,
    "ParentNotDirectoryException": "A part of the path is a file.",
    "is not a directory": "A part of the path is a file.",
    "PathComponentTooLongException": "Give it a shorter name.",
    "FSLimitException": "Give it a shorter name.",
}


# How many DataNodes the NameNode knows to be alive, and how many of them the writer has given up.
_ALIVE = re.compile(r"There are (\d+) datanode\(s\) running and (no|\d+) node\(s\) are excluded")


def full(message: str) -> str | None:
    """Return what to do about a lack of space or quota, None if a text tells of none.

    HDFS says nearly the same where no DataNode is alive, or each has been given up by the writer:
    then there may be room enough.

    Examples
    --------
    >>> told = "could only be written to 0 of the 1 nodes. There are {} datanode(s) running and "
    >>> full(told.format(2) + "no node(s) are excluded")
    'The DataNodes have too little room left.'
    >>> full(told.format(0) + "0 node(s) are excluded") is None
    True
    """
    if counts := _ALIVE.search(message):
        alive, excluded = counts.groups()
        if int(alive) <= (0 if excluded == "no" else int(excluded)):
            return None
    return meaning(FULL, message)


def meaning(signs: Mapping[str, str], message: str) -> str | None:
    """Return what the first sign in a text means, None if there is none.

    Examples
    --------
    >>> meaning(HINTS, "ParentNotDirectoryException: /a is a file")
    'A part of the path is a file.'
    """
    return next((text for sign, text in signs.items() if sign in message), None)
