"""Memory for what workers keep: files without a name, so that it need not be main memory.

A server keeps the state of every worker, which together may be larger than the memory of the
driver's container. The system writes such pages to disk when it needs the memory.
"""

from __future__ import annotations

import errno
import mmap
import os
import tempfile
import warnings

import numpy as np

from distkeras_grid.trees import Packed

#: Smaller buffers are ordinary memory.
SMALL = 1 << 20
#: What the system says of a disk or a quota that is full.
FULL = (errno.ENOSPC, errno.EDQUOT)


def scratch(size: int) -> Packed:
    """Return a new buffer, shape ``(size,)``, ``uint8``; a large one lies in a nameless file.

    If the directory of temporary files has no room, it is ordinary memory, and a warning says so.

    Raises
    ------
    OSError
        If a file cannot be made for another reason.
    MemoryError
        If there is no memory either.
    """
    if size < SMALL:
        return np.empty(size, np.uint8)
    try:
        with tempfile.TemporaryFile(prefix="distkeras-grid-") as file:
            # Now, because a write to a page for which there is no room would kill the process.
            os.posix_fallocate(file.fileno(), 0, size)
            return np.frombuffer(mmap.mmap(file.fileno(), size), np.uint8)
    except OSError as error:
        if error.errno not in FULL:
            raise
        # A worker would send its state again and again, and at last end the run.
        told = f"{size} bytes of state are held in memory, not in {tempfile.gettempdir()}: {error}"
        warnings.warn(told, RuntimeWarning, stacklevel=2)
    return np.empty(size, np.uint8)
