"""Memory for what workers keep: files without a name, so that it need not be main memory.

A server keeps the state of every worker, which together may be larger than the memory of the
driver's container. The system writes such pages to disk when it needs the memory.
"""

from __future__ import annotations

import mmap
import os
import tempfile

import numpy as np

from distkeras_grid.trees import Packed

#: Smaller buffers are ordinary memory.
SMALL = 1 << 20


def scratch(size: int) -> Packed:
    """Return a new buffer, shape ``(size,)``, ``uint8``; a large one lies in a nameless file.

    Raises
    ------
    OSError
        If the directory of temporary files has no room.
    """
    if size < SMALL:
        return np.empty(size, np.uint8)
    with tempfile.TemporaryFile(prefix="distkeras-grid-") as file:
        # Now, because a write to a page for which there is no room would kill the process.
        os.posix_fallocate(file.fileno(), 0, size)
        return np.frombuffer(mmap.mmap(file.fileno(), size), np.uint8)
