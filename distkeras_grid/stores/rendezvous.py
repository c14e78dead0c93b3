"""The order in which a node asks mirrors for a piece, without a table and without a server.

Each mirror gets a score from the node, the piece and itself, and the highest comes first (Thaler
and Ravishankar, "Using Name-Based Mappings to Increase Hit Rates", IEEE/ACM Transactions on
Networking 6(1), 1998). Pieces are spread evenly over the mirrors. If one fails, its pieces are
spread evenly over the others, and no other piece moves.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable


def order_mirrors(mirrors: Iterable[str], node: int, piece: str) -> list[str]:
    """Return all mirrors in the order in which a node asks them for a piece.

    Examples
    --------
    >>> mirrors = ["http://a/tiles", "http://b/tiles"]
    >>> [order_mirrors(mirrors, node=1, piece=f"part-{n}")[0] for n in (1, 2)]
    ['http://b/tiles', 'http://a/tiles']
    """

    def score(mirror: str) -> bytes:
        # The separator keeps different names from joining to the same text.
        key = "\0".join((str(node), piece, mirror))
        return hashlib.blake2b(key.encode(), digest_size=16).digest()

    return sorted(mirrors, key=score, reverse=True)
