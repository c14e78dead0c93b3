"""Keytabs: files of Kerberos keys, split by whose they are.

The KDC writes one file with everybody's keys. Each user of a cluster has a file of their own.

https://web.mit.edu/kerberos/krb5-latest/doc/formats/keytab_file_format.html
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator

from distkeras_grid.errors import SandboxError

# Version 2: all numbers have their most significant byte first.
BEGINNING = b"\x05\x02"
# Triple DES, which today's clients refuse, or call deprecated.
WEAK = 16


def only(keytab: bytes, principals: Collection[str]) -> bytes:
    """Return a keytab with the keys of some principals, those of weak ciphers left out.

    Parameters
    ----------
    keytab : bytes
        A file.
    principals : collection of str
        Names without the realm, such as ``"ada"`` and ``"hdfs/localhost"``.

    Raises
    ------
    SandboxError
        If it is not a keytab, or a principal has no key in it.
    """
    kept = []
    found = set()
    for entry in _entries(keytab):
        name, cipher = _owner(entry)
        if name in principals and cipher != WEAK:
            kept.append(struct.pack(">i", len(entry)) + entry)
            found.add(name)
    if missing := sorted(set(principals) - found):
        raise SandboxError(f"The KDC has made no keys for {', '.join(missing)}. Look at its log.")
    return b"".join([BEGINNING, *kept])


def _entries(keytab: bytes) -> Iterator[bytes]:
    if not keytab.startswith(BEGINNING):
        raise SandboxError(f"A keytab begins with {BEGINNING!r}. Received: {keytab[:2]!r}.")
    at = len(BEGINNING)
    while at < len(keytab):
        if len(keytab) < at + 4:
            raise SandboxError("The keytab ends in the middle of a length. Start the KDC again.")
        (size,) = struct.unpack_from(">i", keytab, at)
        at += 4
        # A negative size is that of a hole, where an entry was deleted.
        if size > 0:
            if len(keytab) < at + size:
                raise SandboxError("The keytab ends in the middle of a key. Start the KDC again.")
            yield keytab[at : at + size]
        at += abs(size)


def _owner(entry: bytes) -> tuple[str, int]:
    """Return an entry's principal, without the realm, and the number of its cipher."""
    try:
        (count,) = struct.unpack_from(">H", entry)
        parts, at = [], 2
        for _ in range(count + 1):
            (size,) = struct.unpack_from(">H", entry, at)
            parts.append(entry[at + 2 : at + 2 + size].decode("utf-8"))
            at += 2 + size
        # The kind of the name, the time, and a short version of the key's number stand between.
        (cipher,) = struct.unpack_from(">H", entry, at + 9)
    except (struct.error, UnicodeDecodeError) as error:
        raise SandboxError(f"The keytab holds something else than keys ({error}).") from error
    # The realm comes first.
    return "/".join(parts[1:]), cipher
