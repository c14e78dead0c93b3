"""Local data sets: each worker draws its own tiles in each iteration, and reads them itself.

`pool`, `drawing` and `coverage` do no I/O. `policy` gives the windows, `rows` reads the tiles of a
window from a store, and `work` trains and tests with them.
"""
