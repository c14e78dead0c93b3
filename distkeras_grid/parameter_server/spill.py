"""Room for what need not be in main memory: files without a name.

A server keeps the state of every worker, and the snapshots of the center that the driver has not
fetched. Together they may be larger than the memory of the driver's container. The system writes
such pages to disk when it needs the memory.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import warnings

import numpy as np

from distkeras_grid.array_tree import Packed
from distkeras_grid.weights import Vector

#: Smaller buffers are ordinary memory.
SMALL = 1 << 20


def scratch(size: int) -> Packed:
    """Return a new buffer, shape ``(size,)``, ``uint8``; a large one lies in a nameless file.

    If that cannot be made, as on a full disk, it is ordinary memory, and a warning says so.
    """
    # Only where room can be had at once: macOS has no such call.
    if size < SMALL or not hasattr(os, "posix_fallocate"):
        return np.empty(size, np.uint8)
    try:
        with tempfile.TemporaryFile(prefix="distkeras-grid-") as file:
            # Now, because a write to a page for which there is no room would kill the process.
            os.posix_fallocate(file.fileno(), 0, size)
            return np.frombuffer(mmap.mmap(file.fileno(), size), np.uint8)
    except OSError as error:
        # It cannot be refused: a worker would send its state again and again, and at last end the
        # run, and the commit that a snapshot is of has been counted.
        warning = f"{size} bytes are held in memory, not in {tempfile.gettempdir()}: {error}"
        warnings.warn(warning, RuntimeWarning, stacklevel=2)
    return np.empty(size, np.uint8)


def spill(vector: Vector) -> Vector:
    """Return a copy of a vector in a new buffer."""
    copy: Vector = scratch(vector.nbytes).view(vector.dtype)
    np.copyto(copy, vector)
    return copy
