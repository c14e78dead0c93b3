"""Local data sets: what each worker draws for itself in each iteration, and forms on its host.

Drawing is pure (`pool`, `drawing`, `coverage`). `policy` gives the windows, `rows` the tiles of a
window from a store, `testing` the local tests.
"""
